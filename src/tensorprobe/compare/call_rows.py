"""The rows that are made of a call's pairs, as they walk from stage to stage."""

from __future__ import annotations

from typing import NamedTuple

from tensorprobe.pairing.match import Pair
from tensorprobe.report.table import Cell
from tensorprobe.report.verdict_text import Verdict

__all__ = ["CallRows", "Row"]


class Row(NamedTuple):
    """One row: its cells, what the value is to its call, how it was judged, and the value.

    Attributes:
        cells: in the order of the columns; they are written and not read.
        state: input, parameters, output or value.
        verdict: how it was judged.
        pair: the value and its partner.
    """

    cells: list[Cell]
    state: str
    verdict: Verdict
    pair: Pair


class CallRows(NamedTuple):
    """The rows of one call of the candidate."""

    name: str
    rows: list[Row]
