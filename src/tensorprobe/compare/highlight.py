"""Mark suspicious rows red or yellow, and say why in their message.

Red: the candidate's max or min is not finite; a very large absolute error; an output that is much
worse than an input. Yellow: an output that is worse than an input; requires_grad that differs.
Outputs are held against every input and parameter of their own call; red hides yellow.
"""

from __future__ import annotations

import math
from typing import Any

from tensorprobe.compare.call_rows import CallRows, Row
from tensorprobe.report.compare_columns import Mode, columns_of
from tensorprobe.report.table import Cell, Fill, Lines

__all__ = ["Highlighter"]

_NOT_FINITE = "maximum or minimum is nan, -inf, or inf"
_HUGE = "maximum absolute error exceeds 1e+10"
_RATIO_RED = (
    "The input/parameter's one thousandth err ratio exceeds 0.9, while the output's is below 0.6"
)
_RATIO_YELLOW = (
    "The output's one thousandth err ratio decreases by more than 0.1 compared to the "
    "input/parameter's"
)
_RELATIVE_RED = "maximum relative error exceeds 0.5"
_RELATIVE_YELLOW = (
    "The output's maximum relative error exceeds 0.1, while the input/parameter's is below 0.01"
)
_MAGNITUDE = (
    "maximum absolute error of both input/parameters and output exceed 1, with the output larger "
    "by an order of magnitude"
)
_COSINE = "The output's cosine decreases by more than 0.1 compared to the input/parameter's"
_GRAD = "requires_grad is inconsistent"

# A reference that is nearly zero must not make every difference look large.
_SMALLEST_REFERENCE = 0.01
_NUMBERS = (float, int)
# What nobody computed or reads is not suspicious, and no yardstick either.
_MEANINGLESS = ("uninitialised", "overwritten")


class Highlighter:
    """Finds the suspicious rows of a call; md5 tables have none."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        titles = columns_of(mode, with_stack=False)
        if mode == "md5":
            return
        place = titles.index
        self._error = place("Max diff" if mode == "statistics" else "MaxAbsErr")
        self._grad = place("Requires_grad Consistent")
        self._message = place("Err_message")
        if mode == "tensor":
            self._ratio, self._cosine = place("One Thousandth Err Ratio"), place("Cosine")

    def mark(self, call: CallRows) -> list[Fill | None]:
        """Return each row's colour, and add the reasons to the rows' messages."""
        if self._mode == "md5":
            return [None] * len(call.rows)
        inputs = [row for row in call.rows if self._can_be_input(row)]
        return [self._mark_row(row, inputs) for row in call.rows]

    def _can_be_input(self, row: Row) -> bool:
        if row.verdict in _MEANINGLESS:
            return False
        return row.state in ("input", "parameters") and self._is_numeric(row)

    def _is_numeric(self, row: Row) -> bool:
        other = row.pair.reference
        return (
            other is not None
            and _is_number(row.pair.candidate.max)
            and _is_number(other.max)
            and isinstance(row.cells[self._error], _NUMBERS)
        )

    def _mark_row(self, row: Row, inputs: list[Row]) -> Fill | None:
        if row.verdict in _MEANINGLESS:
            return None
        cells, leaf = row.cells, row.pair.candidate
        red: list[str] = []
        yellow: list[str] = []
        if _is_not_finite(leaf.max) or _is_not_finite(leaf.min):
            red.append(_NOT_FINITE)
        else:
            error = cells[self._error]
            if isinstance(error, _NUMBERS) and abs(error) > 1e10:
                red.append(_HUGE)
        if row.state == "output" and self._is_numeric(row):
            for source in inputs:
                self._hold_against(row, source, red, yellow)
            if not inputs and self._is_far(row):
                red.append(_RELATIVE_RED)
        if not cells[self._grad]:
            yellow.append(_GRAD)
        reasons = red or yellow
        if not reasons:
            return None
        message = str(cells[self._message])
        lines = [message, *reasons] if message else reasons
        cells[self._message] = lines[0] if len(lines) == 1 else Lines.of(lines)
        return "red" if red else "yellow"

    def _hold_against(self, output: Row, source: Row, red: list[str], yellow: list[str]) -> None:
        old_cells, cells = source.cells, output.cells
        before, after = _size(old_cells[self._error]), _size(cells[self._error])
        if before > 1 and after > 1 and _orders_between(before, after) >= 1:
            yellow.append(_MAGNITUDE)
        if self._mode == "tensor":
            _compare_ratios(old_cells[self._ratio], cells[self._ratio], red, yellow)
            old, new = old_cells[self._cosine], cells[self._cosine]
            if isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS) and old - new > 0.1:
                yellow.append(_COSINE)
        if self._is_far(output):
            red.append(_RELATIVE_RED)
        if _relative_error(output) > 0.1 and _relative_error(source) < 0.01:
            yellow.append(_RELATIVE_YELLOW)

    def _is_far(self, output: Row) -> bool:
        """Whether the maximum of an output is too far off, whatever went in."""
        return self._mode == "statistics" and _relative_error(output) > 0.5


def _relative_error(row: Row) -> float:
    """Return how far the two maxima are apart, over that of the reference."""
    ours, theirs = row.pair.candidate, row.pair.reference
    reference = _as_float(0.0 if theirs is None else theirs.max)
    difference = _as_float(ours.max) - reference
    return abs(difference) / max(_SMALLEST_REFERENCE, abs(reference))


def _as_float(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:  # a whole number that no float can hold
        return math.copysign(math.inf, cell > 0 or -1)


def _size(cell: Any) -> float:
    return abs(_as_float(cell))


def _orders_between(before: float, after: float) -> float:
    if math.isinf(after):
        return math.inf if math.isfinite(before) else 0.0
    return math.log10(after) - math.log10(before)


def _compare_ratios(before: Cell, after: Cell, red: list[str], yellow: list[str]) -> None:
    if not isinstance(before, _NUMBERS) or not isinstance(after, _NUMBERS):
        return
    if before > 0.9 and after < 0.6:
        red.append(_RATIO_RED)
    elif before - after > 0.1:
        yellow.append(_RATIO_YELLOW)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and value == value


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
