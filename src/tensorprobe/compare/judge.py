"""Judge a pair: differences of statistics, Result, Accuracy Reached or Not, and the messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorprobe.report.row_text import number_texts
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
    "differences_of_all",
    "reaches_accuracy",
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
        is_plain: whether all numbers of both sides are finite.
        is_unlike: whether a number is finite on one side alone, or infinite with another sign; the
            seeds' tables have no word for it, but such a value does not pass.
    """

    cells: list[Any]
    is_far: bool
    is_plain: bool
    is_unlike: bool = False


def differences_of_all(pairs: Sequence[tuple[Leaf, Leaf]]) -> list[StatisticsDifference]:
    """Subtract the statistics of each reference from those of its candidate."""
    results: list[StatisticsDifference | None] = [None] * len(pairs)
    plain = [number for number, pair in enumerate(pairs) if _has_floats(*pair)]
    if plain:
        # Nearly all rows are of this kind: one pass of numpy over many of them.
        ours = _table(pairs[number][0] for number in plain)
        theirs = _table(pairs[number][1] for number in plain)
        with np.errstate(all="ignore"):
            differences = ours - theirs
            relatives = np.abs(differences / theirs)
        usable: list[bool] = np.all(np.isfinite(relatives), axis=1).tolist()
        far: list[bool] = np.any(relatives > _LARGEST_RELATIVE_ERROR, axis=1).tolist()
        shown = differences.tolist()
        percents = number_texts((relatives * 100).ravel().tolist(), "%")
        for row, number in enumerate(plain):
            if usable[row]:
                cells = shown[row]
                cells += percents[4 * row : 4 * row + 4]
                results[number] = _make_difference((cells, far[row], True, False))
    return [
        difference_of(*pair) if result is None else result
        for pair, result in zip(pairs, results, strict=True)
    ]


# The constructor that a NamedTuple writes in Python takes twice as long.
_make_difference: Callable[[tuple[Any, ...]], StatisticsDifference] = partial(
    tuple.__new__, StatisticsDifference
)


def _has_floats(ours: Leaf, theirs: Leaf) -> bool:
    return (
        type(ours[4]) is float
        and type(theirs[4]) is float
        and type(ours[5]) is float
        and type(theirs[5]) is float
        and type(ours[6]) is float
        and type(theirs[6]) is float
        and type(ours[7]) is float
        and type(theirs[7]) is float
    )


def _table(leaves: Iterable[Leaf]) -> npt.NDArray[np.float64]:
    numbers = chain.from_iterable(leaf[4:8] for leaf in leaves)
    return np.fromiter(numbers, np.float64).reshape(-1, 4)


def difference_of(candidate: Leaf, reference: Leaf) -> StatisticsDifference:
    """Subtract the statistics of the reference from those of the candidate, whatever they are.

    A relative error has no number where the reference is 0 or something is not finite.
    """
    differences: list[Any] = []
    relatives: list[Any] = []
    is_far = is_unlike = False
    for ours, theirs in zip(candidate[4:8], reference[4:8], strict=True):
        if type(ours) not in _NUMBERS or type(theirs) not in _NUMBERS:
            differences.append("N/A")
            relatives.append("N/A")
            continue
        is_unlike = is_unlike or _are_unlike(ours, theirs)
        try:
            difference = ours - theirs
            relative = abs(difference / theirs) if theirs else None
        except OverflowError:  # whole numbers that no float can hold
            difference, relative = math.nan, math.nan
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
    return StatisticsDifference(differences + relatives, is_far, False, is_unlike)


def _are_unlike(ours: float, theirs: float) -> bool:
    """Whether one of two numbers is not finite and the other is not the same."""
    # Whole numbers are finite, also those that no float can hold.
    if all(type(number) is int or math.isfinite(number) for number in (ours, theirs)):
        return False
    return ours != theirs and not (ours != ours and theirs != theirs)


def reaches_accuracy(cosine: Any, max_abs_error: Any) -> str:
    """Say whether a pair of real data agrees well enough: Yes, No, None or Unmatched.

    >>> reaches_accuracy(0.98, 0.01), reaches_accuracy(0.98, 0.0001), reaches_accuracy(1.0, 2.0)
    ('No', 'Yes', 'No')
    >>> reaches_accuracy("N/A", "N/A"), reaches_accuracy("unsupported", 0.0)
    ('No', 'None')
    """
    if cosine == "shape unmatched":
        return "Unmatched"
    if cosine == "N/A" or max_abs_error == "N/A":
        return "No"
    try:
        similarity, error = float(cosine), float(max_abs_error)
    except (TypeError, ValueError):
        return "None"
    misses = (similarity < 0.99 and error > 0.001) or similarity < 0.9 or error > 1
    return "No" if misses else "Yes"
