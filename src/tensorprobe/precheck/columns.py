"""The metrics of one output as the cells of its line in the details."""

from __future__ import annotations

from tensorprobe.precheck.judge import Judgement

__all__ = ["metric_cells"]

_BLANKS = 20


def metric_cells(judgement: Judgement) -> tuple[str, ...]:
    """Return the cells of the metric columns, and those behind the message; blank where unknown.

    >>> metric_cells(Judgement("pass", unequal=0.0))[:6]
    ('', '', '', '', '', '0')
    """
    numbers = judgement.numbers
    if numbers is None:
        cells = [""] * _BLANKS
        cells[5] = _text(judgement.unequal)
        cells[-1] = judgement.older or ""
        return tuple(cells)
    pair = numbers.pair
    cells = [
        _text(numbers.cosine),
        _text(pair.max_abs_error),
        *(_text(share) for share in numbers.within),
        _text(judgement.unequal),
        _text(numbers.balance),
        _text(numbers.root_mean_square),
        _text(numbers.small_wrong),
        _text(pair.max_relative_error),
        _text(numbers.mean_relative),
        _text(numbers.nonfinite_wrong),
        _text(1 - numbers.within[0]),
        # Of the small values alone: relative to them an error says nothing.
        _text(numbers.small_wrong),
        _text(numbers.ulp_max),
        _text(numbers.ulp_mean),
        _text(numbers.ulp_over),
        _text(numbers.distance),
        _text(judgement.limit),
        judgement.older or "",
    ]
    return tuple(cells)


def _text(number: float | None) -> str:
    """Write a number so that it is short, exact to ten digits and the same each time."""
    return "" if number is None else f"{number:.10g}"
