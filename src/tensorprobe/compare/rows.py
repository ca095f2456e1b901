"""Make the rows of one call's table: what each cell of each mode holds.

MatchedCall (+ Measured) ─► RowMaker ─► CallRows, in the order of report.compare_columns
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from tensorprobe.compare.call_rows import CallRows, Row
from tensorprobe.compare.cells import (
    UNMATCHED,
    checksum_cell,
    dtype_cell,
    number_cell,
    requires_grad_cell,
    shape_cell,
)
from tensorprobe.compare.judge import (
    BENCH_UNMATCHED,
    FUZZY,
    GRAD_INCONSISTENT,
    NEEDS_CHECK,
    NO_BENCH,
    NO_BENCH_FILE,
    NO_CANDIDATE_FILE,
    difference_of,
    judge_statistics,
    settle,
)
from tensorprobe.compare.measure import NOT_MEASURED, Measured
from tensorprobe.compare.plain_rows import load_plain_rows
from tensorprobe.names import is_forward
from tensorprobe.operations.calls import can_mean_nothing
from tensorprobe.pairing.match import MatchedCall, Pair
from tensorprobe.pairing.value_names import row_name, state_of
from tensorprobe.report.compare_columns import Mode
from tensorprobe.report.table import Cell
from tensorprobe.report.verdict_text import ACCURACY, MESSAGES, Verdict, checksum_result
from tensorprobe.store import RankDump
from tensorprobe.store.leaves import Leaf

__all__ = ["CallRows", "Row", "RowMaker", "is_recorded", "wants_data"]


def is_recorded(leaf: Leaf) -> bool:
    """Whether a value gets a row: ptdbg_ascend leaves out arguments that it could not describe."""
    return leaf.kind != "not recorded"


def wants_data(pair: Pair) -> bool:
    """Whether both sides of a pair have a file to be measured."""
    other = pair.reference
    return (
        other is not None and pair.candidate.data_name is not None and other.data_name is not None
    )


_NOTHING: Iterator[Any] = iter(())
# From the name of a call, a pair of its values and what was measured.
_Make: TypeAlias = Callable[[str, Pair, Iterator[Any]], tuple[list[Cell], Verdict]]


class RowMaker:
    """Turns matched calls into rows.

    Args:
        mode: tensor, statistics or md5.
        stacks: the dump whose call stacks are shown; None for no such column.
        is_fuzzy: whether a partner of another name is worth a message.
    """

    def __init__(self, mode: Mode, stacks: RankDump | None, *, is_fuzzy: bool) -> None:
        self._stacks = stacks
        self._stack_texts: dict[int, str] = {}
        self._is_fuzzy = is_fuzzy
        makers: dict[Mode, _Make] = {
            "tensor": self._tensor_row,
            "statistics": self._statistics_row,
            "md5": self._md5_row,
        }
        self._make = makers[mode]
        self._has_data_name = mode == "tensor"
        self._plain = load_plain_rows() if mode == "statistics" else None

    def make(self, call: MatchedCall, results: Iterator[Any]) -> CallRows:
        """Make the rows of a call.

        Args:
            call: the call.
            results: of real data, what was measured, for every pair that `wants_data`.
        """
        stack = self._stack_text(call.name) if self._stacks is not None else None
        if self._plain is not None and not can_mean_nothing(call.name):
            rows = self._plain.statistics_rows(call.name, call.pairs, self._row)
        else:
            made = (self._row(call.name, pair, results) for pair in call.pairs)
            rows = [row for row in made if row is not None]
        if stack is not None:
            for row in rows:
                row.cells.insert(-1 if self._has_data_name else len(row.cells), stack)
                stack = "N/A"
        return CallRows(call.name, rows)

    def _row(self, call: str, pair: Pair, results: Iterator[Measured] = _NOTHING) -> Row | None:
        """Make the row of one pair; None for a value that gets none."""
        leaf = pair.candidate
        if not is_recorded(leaf):
            return None
        cells, verdict = self._make(call, pair, results)
        if self._has_data_name:
            cells.append(_data_names(pair))
        return _make_row((cells, state_of(leaf), verdict, pair))

    def _stack_text(self, name: str) -> str:
        if self._stacks is None or not is_forward(name):
            return "N/A"
        frames = self._stacks.stack(name)
        # Calls of one line share their frames, which live as long as the dump.
        text = self._stack_texts.get(id(frames))
        if text is None:
            text = str([str(frame) for frame in frames]) if frames else "N/A"
            self._stack_texts[id(frames)] = text
        return text

    def _statistics_row(
        self, call: str, pair: Pair, _: Iterator[Any]
    ) -> tuple[list[Cell], Verdict]:
        ours, theirs = pair.candidate, pair.reference
        cells, is_consistent = _first_cells(call, pair)
        if theirs is None:
            message = NO_BENCH if is_consistent else NO_BENCH + GRAD_INCONSISTENT
            cells += (*_EIGHT_UNMATCHED, *_numbers(ours), *_FOUR_UNMATCHED)
            cells += (is_consistent, UNMATCHED, message)
            return cells, "unmatched"
        difference = difference_of(ours, theirs)
        verdict = settle(judge_statistics(difference), call, ours.place)
        cells += (*difference.cells, *_numbers(ours), *_numbers(theirs))
        is_warned = difference.is_far and verdict == "failed"
        message = NEEDS_CHECK if is_warned else MESSAGES.get(verdict, "")
        if not is_consistent:
            message += GRAD_INCONSISTENT
        cells += (is_consistent, "Warning" if is_warned else "", message)
        return cells, verdict

    def _md5_row(self, call: str, pair: Pair, _: Iterator[Any]) -> tuple[list[Cell], Verdict]:
        cells, is_consistent = _first_cells(call, pair)
        ours = checksum_cell(pair.candidate)
        if pair.reference is None:
            cells += (ours, UNMATCHED, is_consistent, UNMATCHED)
            return cells, "unmatched"
        theirs = checksum_cell(pair.reference)
        verdict = settle("passed" if ours == theirs else "failed", call, pair.candidate.place)
        cells += (ours, theirs, is_consistent, checksum_result(verdict))
        return cells, verdict

    def _tensor_row(
        self, call: str, pair: Pair, results: Iterator[Measured]
    ) -> tuple[list[Cell], Verdict]:
        ours, theirs = pair.candidate, pair.reference
        cells, is_consistent = _first_cells(call, pair)
        message = "" if is_consistent else GRAD_INCONSISTENT
        measured = NOT_MEASURED
        if theirs is None:
            if ours.data_name is None:
                message = NO_BENCH + message + NO_CANDIDATE_FILE
            else:
                message += BENCH_UNMATCHED
        elif wants_data(pair):
            measured = next(results)
            message += measured.message
        else:
            message += NO_CANDIDATE_FILE if ours.data_name is None else NO_BENCH_FILE
        if self._is_fuzzy and _has_other_name(call, pair):
            message += FUZZY
        accuracy = settle(measured.verdict, call, ours.place)
        verdict = accuracy
        if theirs is None:
            verdict = "unmatched"
        elif accuracy == "open" and ours.kind == "tensor" and difference_of(ours, theirs).is_unlike:
            # A loss that is NaN on one side alone has no cosine, and is no agreement either.
            verdict = settle("failed", call, ours.place)
        message = MESSAGES.get(verdict, "") + message
        cells += measured.cells
        cells += (*_numbers(ours), *(_FOUR_UNMATCHED if theirs is None else _numbers(theirs)))
        cells += (is_consistent, ACCURACY[accuracy], message)
        return cells, verdict


# The constructor that a NamedTuple writes in Python takes twice as long.
_make_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_FOUR_UNMATCHED = (UNMATCHED,) * 4
_EIGHT_UNMATCHED = (UNMATCHED,) * 8


def _first_cells(own_call: str, pair: Pair) -> tuple[list[Cell], bool]:
    """Return names, dtypes, shapes and requires_grad, and whether the last agree."""
    ours, theirs = pair.candidate, pair.reference
    name = row_name(own_call, ours)
    dtype, shape, grad = dtype_cell(ours), shape_cell(ours), requires_grad_cell(ours)
    if theirs is None:
        absent = UNMATCHED
        return [name, absent, dtype, absent, shape, absent, grad, absent], grad == absent
    place = theirs[0]
    is_named = place and not place.startswith("kwargs.")
    call = pair.reference_call
    other_name = f"{call}.{place}" if is_named else row_name(call, theirs)
    if ours[1:4] == theirs[1:4]:
        other_dtype, other_shape = dtype, shape
    else:
        other_dtype, other_shape = dtype_cell(theirs), shape_cell(theirs)
    other = requires_grad_cell(theirs)
    cells: list[Cell] = [name, other_name, dtype, other_dtype, shape, other_shape, grad, other]
    return cells, grad == other


def _has_other_name(call: str, pair: Pair) -> bool:
    theirs = pair.reference
    if theirs is None:
        return False
    return row_name(call, pair.candidate) != row_name(pair.reference_call, theirs)


def _numbers(leaf: Leaf) -> tuple[Cell, Cell, Cell, Cell]:
    return (
        number_cell(leaf.max),
        number_cell(leaf.min),
        number_cell(leaf.mean),
        number_cell(leaf.norm),
    )


def _data_names(pair: Pair) -> str:
    ours = pair.candidate.data_name or "-1"
    theirs = UNMATCHED if pair.reference is None else pair.reference.data_name or "-1"
    return str([ours, theirs])
