"""What walks from stage to stage: pairs of values by call, and the rows that are made of them."""

from __future__ import annotations

from typing import NamedTuple

from tensorprobe.operations.calls import is_overwritten, is_uninitialised
from tensorprobe.report.table import Cell
from tensorprobe.store.leaves import Leaf

__all__ = ["CallRows", "MatchedCall", "Pair", "Row", "is_meaningless"]


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
    """One row: its cells, what the value is to its call, and how it was judged.

    Attributes:
        cells: in the order of the columns.
        state: input, parameters, output or value.
        verdict: passed, failed, unmatched, or open where nothing can be said.
    """

    cells: list[Cell]
    state: str
    verdict: str


class CallRows(NamedTuple):
    """The rows of one call of the candidate."""

    name: str
    rows: list[Row]


def is_meaningless(call: str, row: Row) -> bool:
    """Whether a value is memory as it was found: from `empty`, or on its way into `zero_`."""
    if is_uninitialised(call):
        return True
    return row.state == "input" and is_overwritten(call) and str(row.cells[0]).endswith(".input.0")
