"""What the compiled kernel computes of two arrays, in numpy: its fallback and its tests' oracle.

Both work on one piece of a pair at a time, of a few MiB at most; `pair.py` cuts the pieces and puts
the results together. All arithmetic is in float64. numpy alone knows complex numbers: their errors
and sizes are moduli, and the product of a pair is the real part of `candidate * conj(reference)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["EPSILON", "NO_SCALES", "THRESHOLDS", "PiecePair", "Scales", "four_of", "measure_values"]

THRESHOLDS = (1e-4, 1e-3, 5e-3, 1e-2)
"""The relative errors below which elements are counted."""

EPSILON = 2.0**-52
"""What stands for a reference of 0 when a relative error is taken, as the older tools do."""


class Scales(NamedTuple):
    """Powers of two that both sides and their differences are divided by before they are squared.

    They are 1.0 but for float64 so extreme that float64 cannot hold its squares.
    """

    candidate: float
    reference: float
    difference: float


NO_SCALES = Scales(1.0, 1.0, 1.0)


class PiecePair(NamedTuple):
    """Numbers of one piece of a pair; the order is that of the kernel's `measure_pair`.

    The attributes mean what those of `pair_numbers.PairNumbers` mean; here `max_abs_index` counts
    from the beginning of the piece, and the peaks are the largest finite magnitudes.
    """

    dot: float
    candidate_squares: float
    reference_squares: float
    difference_squares: float
    max_abs_error: float
    max_abs_index: int
    max_relative_error: float
    within: tuple[int, int, int, int]
    unequal: int
    nan_mismatch: int
    inf_mismatch: int
    opposite_infinities: int
    candidate_nonfinite: int
    reference_nonfinite: int
    candidate_peak: float
    reference_peak: float


def measure_values(
    candidate: npt.NDArray[Any], reference: npt.NDArray[Any], scales: Scales = NO_SCALES
) -> PiecePair:
    """Return the numbers of two flat arrays of the same length, of numpy's own kinds.

    >>> got = measure_values(np.array([1.0, 2.0, np.nan]), np.array([1.0, 2.5, np.nan]))
    >>> got.dot, got.max_abs_error, got.max_abs_index, got.max_relative_error, got.within
    (6.0, 0.5, 1, 0.2, (2, 2, 2, 2))
    """
    a, b = _as_wide(candidate, reference)
    unequal = None
    if candidate.dtype.kind in "iu" and reference.dtype.kind in "iu":
        unequal = _count_unequal_integers(candidate, reference)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    inf_a, inf_b = np.isinf(a), np.isinf(b)
    special_a, special_b = nan_a | inf_a, nan_b | inf_b
    nan_mismatch = opposite = inf_mismatch = 0
    special = special_a | special_b
    mismatch = np.zeros(a.shape, np.bool_)
    if special.any():
        one_nan = nan_a != nan_b
        # (inf, NaN) of a complex number is NaN: it is counted above.
        other_inf = (inf_a | inf_b) & ~nan_a & ~nan_b & (a != b)
        mismatch = one_nan | other_inf
        nan_mismatch = int(np.count_nonzero(one_nan))
        inf_mismatch = int(np.count_nonzero(other_inf))
        opposite = int(np.count_nonzero(other_inf & inf_a & inf_b))
        a, b = np.where(special, 0.0, a), np.where(special, 0.0, b)
    # What overflows here is infinite in float64, and so it is reported.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        differences = a - b
        errors, sizes, own_sizes = np.abs(differences), np.abs(b), np.abs(a)
        relative = errors / np.where(sizes == 0, EPSILON, sizes)
        a, b = a / scales.candidate, b / scales.reference
        differences = differences / scales.difference
        dot, squares, reference_squares = _dot(a, b), _dot(a, a), _dot(b, b)
        difference_squares = _dot(differences, differences)
    if unequal is None:
        unequal = int(np.count_nonzero(errors)) + int(np.count_nonzero(mismatch))
    kept = relative if not mismatch.any() else relative[~mismatch]
    largest = float(errors.max(initial=0.0))
    index = int(errors.argmax()) if largest > 0 else -1
    return PiecePair(
        dot=dot,
        candidate_squares=squares,
        reference_squares=reference_squares,
        difference_squares=difference_squares,
        max_abs_error=largest,
        max_abs_index=index,
        max_relative_error=float(relative.max(initial=0.0)),
        within=four_of(int(np.count_nonzero(kept < threshold)) for threshold in THRESHOLDS),
        unequal=unequal,
        nan_mismatch=nan_mismatch,
        inf_mismatch=inf_mismatch,
        opposite_infinities=opposite,
        candidate_nonfinite=int(np.count_nonzero(special_a)),
        reference_nonfinite=int(np.count_nonzero(special_b)),
        candidate_peak=float(own_sizes.max(initial=0.0)),
        reference_peak=float(sizes.max(initial=0.0)),
    )


def _as_wide(
    candidate: npt.NDArray[Any], reference: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return both as float64, or as complex128 where one of them is complex."""
    wide = np.complex128 if "c" in (candidate.dtype.kind, reference.dtype.kind) else np.float64
    # A signalling NaN is data here. A bool may hold any byte; all but 0 are true.
    with np.errstate(invalid="ignore"):
        a, b = (
            (side.view(np.uint8) != 0 if side.dtype.kind == "b" else side).astype(wide)
            for side in (candidate, reference)
        )
    return a, b


def _count_unequal_integers(candidate: npt.NDArray[Any], reference: npt.NDArray[Any]) -> int:
    """Return how many integers differ, also where float64 cannot tell them apart."""
    differ = candidate != reference
    kinds = candidate.dtype.kind + reference.dtype.kind
    if "u" in kinds and "i" in kinds:
        # numpy before 2 compares these as float64.
        signed, unsigned = (candidate, reference) if kinds == "iu" else (reference, candidate)
        differ = (signed < 0) | (signed.astype(np.uint64) != unsigned.astype(np.uint64))
    return int(np.count_nonzero(differ))


def _dot(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> float:
    """Return the sum of products; numpy adds in pairs, so that rounding errors stay small."""
    products = left * right
    if left.dtype.kind == "c":
        products = left.real * right.real + left.imag * right.imag
    return float(products.sum())


def four_of(counts: Iterable[int]) -> tuple[int, int, int, int]:
    """Return counts, one for each of THRESHOLDS, as a tuple of that length."""
    first, second, third, fourth = counts
    return first, second, third, fourth
