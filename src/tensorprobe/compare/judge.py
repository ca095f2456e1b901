"""Judge a pair: by the differences of its statistics, by what was measured, by what it is.

two leaves ─► difference_of ─► judge_statistics ┐
cosine and largest error ─► judge_accuracy      ├─► settle ─► Verdict
two checksums                                   ┘
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tensorprobe.operations.calls import meaningless_as
from tensorprobe.report.verdict_text import Verdict
from tensorprobe.store.leaves import Leaf

__all__ = [
    "BENCH_UNMATCHED",
    "FUZZY",
    "GRAD_INCONSISTENT",
    "NEEDS_CHECK",
    "NO_BENCH",
    "NO_BENCH_FILE",
    "NO_CANDIDATE_FILE",
    "StatisticsDifference",
    "difference_of",
    "judge_accuracy",
    "judge_statistics",
    "settle",
]

# The texts are part of the table's format; the spaces at their ends separate one from the next.
NEEDS_CHECK = "Need double check api accuracy. "
FUZZY = " Fuzzy matching data, the comparison accuracy may be affected."
NO_BENCH = "No bench data matched."
NO_CANDIDATE_FILE = "NPU does not have data file."
NO_BENCH_FILE = "Bench does not have data file."
BENCH_UNMATCHED = "Bench api/module unmatched."
GRAD_INCONSISTENT = "Requires_grad inconsistent. "

_LARGEST_RELATIVE_ERROR = 0.5
_NUMBERS = (float, int)


class StatisticsDifference(NamedTuple):
    """What the four statistics of a pair say.

    Attributes:
        cells: the four differences, then the four relative errors.
        is_far: whether a relative error is too large.
        is_unlike: whether a number is finite on one side alone, or infinite with another sign, or a
            truth value is another; the seeds' tables have no word for it, but such a value does
            not pass.
        is_open: whether something that is no number, such as a text, is not the same: the name of a
            device is another one on another machine, and that of a reduction must not be.
    """

    cells: list[Any]
    is_far: bool
    is_unlike: bool
    is_open: bool


def difference_of(candidate: Leaf, reference: Leaf) -> StatisticsDifference:
    """Subtract the statistics of the reference from those of the candidate, whatever they are.

    A relative error has no number where the reference is 0 or something is not finite.
    """
    differences: list[Any] = []
    relatives: list[Any] = []
    is_far = is_unlike = is_open = False
    for ours, theirs in zip(candidate[4:8], reference[4:8], strict=True):
        if type(ours) not in _NUMBERS or type(theirs) not in _NUMBERS:
            differences.append("N/A")
            relatives.append("N/A")
            if ours is not None and theirs is not None and ours != theirs:
                is_unlike = is_unlike or type(ours) is type(theirs) is bool
                is_open = True
            continue
        is_unlike = is_unlike or _are_unlike(ours, theirs)
        try:
            difference = ours - theirs
            relative = abs(difference / theirs) if theirs else None
        except OverflowError:  # whole numbers that no float can hold
            difference, relative = math.nan, math.nan
            is_far = is_far or ours != theirs
        if difference != difference:
            differences.append("Nan")
            relatives.append("Nan")
            continue
        differences.append(difference)
        if relative is None:
            relatives.append("N/A")
            is_far = is_far or difference != 0
        elif relative != relative:
            relatives.append("Nan")
        else:
            relatives.append(f"{relative * 100}%")
            is_far = is_far or relative > _LARGEST_RELATIVE_ERROR
    return StatisticsDifference(differences + relatives, is_far, is_unlike, is_open)


def _are_unlike(ours: float, theirs: float) -> bool:
    """Whether one of two numbers is not finite and the other is not the same."""
    # Whole numbers are finite, also those that no float can hold.
    if all(type(number) is int or math.isfinite(number) for number in (ours, theirs)):
        return False
    return ours != theirs and not (ours != ours and theirs != theirs)


def judge_statistics(difference: StatisticsDifference) -> Verdict:
    """Say whether the statistics of a pair agree well enough."""
    if difference.is_far or difference.is_unlike:
        return "failed"
    return "open" if difference.is_open else "passed"


def judge_accuracy(similarity: float | None, error: float) -> Verdict:
    """Say whether a pair of real data agrees well enough.

    Args:
        similarity: the cosine; NaN where a side is all zero, None where one of two numbers says
            nothing.
        error: the largest absolute error.

    >>> judge_accuracy(0.98, 0.01), judge_accuracy(0.98, 0.0001), judge_accuracy(1.0, 2.0)
    ('failed', 'passed', 'failed')
    """
    if similarity is None:
        return "open"
    misses = (similarity < 0.99 and error > 0.001) or similarity < 0.9 or error > 1
    return "failed" if misses else "passed"


def settle(verdict: Verdict, call: str, place: str) -> Verdict:
    """Return the verdict on a value, or why it means nothing that this value fails."""
    return (meaningless_as(call, place) or verdict) if verdict == "failed" else verdict
