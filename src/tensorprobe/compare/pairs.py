"""What walks from stage to stage: pairs of values by call, and the rows that are made of them."""

from __future__ import annotations

from typing import NamedTuple

from tensorprobe.report.table import Cell
from tensorprobe.report.verdict_text import Verdict
from tensorprobe.store.leaves import Leaf

__all__ = ["CallRows", "MatchedCall", "Pair", "Row"]


class Pair(NamedTuple):
    """A value of the candidate and its partner, which may be of another call."""

    candidate: Leaf
    reference: Leaf | None
    reference_call: str
    is_transposed: bool = False


class MatchedCall(NamedTuple):
    """One call of the candidate with its values' partners."""

    name: str
    pairs: list[Pair]


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
