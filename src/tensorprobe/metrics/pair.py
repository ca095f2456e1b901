"""Numbers about a pair of arrays of any dtypes, strides and size, on this machine's cores.

    pair ─► drop repetition ─► memory order ─► pieces of 4 MiB ─► threads: kernel or numpy ─► total
                             (pair_layout.py)               (pair_pieces.py)

Two arrays that lie in memory in the same order are read in that order, without a copy; others are
copied piece by piece (pair_layout.py). Pieces do not depend on the number of threads and their sums
are added exactly, so neither do the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DType, dtype_of_numpy, widen
from tensorprobe.metrics.kernel import Kernel, load_kernel
from tensorprobe.metrics.pair_layout import PairLayout, align_pair, find_place
from tensorprobe.metrics.pair_numbers import (
    PairNumbers,
    Unavailable,
    cosine,
    equal_pair,
    error_ratio,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    relative_distance,
    scalar_errors,
)
from tensorprobe.metrics.pair_numpy import NO_SCALES, PiecePair, Scales, four_of, measure_values
from tensorprobe.metrics.pair_pieces import over_pieces
from tensorprobe.tensor_data import TensorData

__all__ = [
    "PairNumbers",
    "Unavailable",
    "cosine",
    "equal_pair",
    "error_ratio",
    "euclidean_distance",
    "max_absolute_error",
    "max_relative_error",
    "measure_arrays",
    "measure_pair",
    "relative_distance",
    "rounds_reference",
    "scalar_errors",
]

Array = npt.NDArray[Any]

# Which variant of the kernel works: the fastest.
VARIANT = ""


def measure_pair(
    candidate: TensorData, reference: TensorData, *, threads: int = 0, rounds: bool = False
) -> PairNumbers:
    """Return the numbers of two tensors of the same number of elements.

    Tensors of different shapes are compared element by element in C order.

    Args:
        candidate: the tensor under test.
        reference: the tensor that is trusted; its dtype may be another.
        threads: how many threads may work; 0 for all cores of this process.
        rounds: the reference is rounded to the candidate's dtype first. Only the kernel can, and
            only what `rounds_reference` says.

    Raises:
        ValueError: the numbers of elements differ.

    >>> from tensorprobe.dtypes import DTYPES
    >>> ours = TensorData(DTYPES["torch.bfloat16"], np.array([0x3F80, 0xC000], np.uint16))
    >>> theirs = TensorData(DTYPES["torch.float32"], np.array([1, -2.5], np.float32))
    >>> measure_pair(ours, theirs).max_abs_error
    0.5
    """
    if candidate.array.size != reference.array.size:
        raise ValueError(
            f"got {candidate.array.size} and {reference.array.size} elements, wanted as many"
        )
    job = _Job(candidate.dtype, reference.dtype, load_kernel(), NO_SCALES, rounds)
    layout = align_pair(candidate.array, reference.array)
    numbers = _measure(layout, job, threads)
    scales = _choose_scales(numbers)
    if scales != NO_SCALES:
        numbers = _measure(layout, job._replace(scales=scales), threads)
    return _as_pair_numbers(numbers, layout, scales)


def measure_arrays(candidate: Array, reference: Array, *, threads: int = 0) -> PairNumbers:
    """Return the numbers of two arrays of numpy's own dtypes.

    Raises:
        ValueError: the numbers of elements differ.
        TypeError: torch has no such dtype.

    >>> measure_arrays(np.array([1, 2, 3]), np.array([1.0, 2.0, 4.0])).unequal
    1
    """
    sides = []
    for array in (np.asarray(candidate), np.asarray(reference)):
        dtype = dtype_of_numpy(array.dtype)
        if dtype is None:
            raise TypeError(f"got an array of {array.dtype}, which torch has no dtype for")
        sides.append(TensorData(dtype, array.astype(dtype.carrier, copy=False)))
    return measure_pair(*sides, threads=threads)


# --- measuring -----------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What is to be done with each piece."""

    candidate: DType
    reference: DType
    kernel: Kernel | None
    scales: Scales
    rounds: bool


def _measure(layout: PairLayout, job: _Job, threads: int) -> PiecePair:
    """Measure all pieces of a pair and add up what was found."""

    def measure_piece(start: int, candidate: Array, reference: Array) -> PiecePair:
        return _measure_piece(start, candidate, reference, job)

    return _add_up(over_pieces(layout, measure_piece, threads))


def _measure_piece(start: int, candidate: Array, reference: Array, job: _Job) -> PiecePair:
    a = np.ascontiguousarray(candidate).reshape(-1)
    b = np.ascontiguousarray(reference).reshape(-1)
    if job.kernel is None or "complex" in (job.candidate.kind, job.reference.kind):
        numbers = measure_values(widen(a, job.candidate), widen(b, job.reference), job.scales)
    else:
        numbers = PiecePair(
            *job.kernel.measure_pair(
                a.ctypes.data,
                _kernel_type(job.candidate),
                b.ctypes.data,
                _kernel_type(job.reference, job.candidate if job.rounds else None),
                a.size,
                1.0 / job.scales.candidate,
                1.0 / job.scales.reference,
                1.0 / job.scales.difference,
                VARIANT,
            )
        )
    if numbers.max_abs_index < 0 or not start:
        return numbers
    return numbers._replace(max_abs_index=numbers.max_abs_index + start)


def rounds_reference(candidate: DType, reference: DType) -> bool:
    """Whether a reference of one dtype can be rounded to the candidate's while it is measured."""
    names = (candidate.name, reference.name)
    return load_kernel() is not None and names in _ROUNDED


_ROUNDED = frozenset(
    (f"torch.{narrow}", f"torch.{wide}")
    for wide, narrower in (
        ("float32", ("bfloat16", "float16")),
        ("float64", ("bfloat16", "float16", "float32")),
    )
    for narrow in narrower
)


def _kernel_type(dtype: DType, rounded_to: DType | None = None) -> str | int:
    if dtype.kind == "float" and dtype.itemsize == 1:
        return int(_small_values(dtype).ctypes.data)
    name = dtype.name.removeprefix("torch.")
    if rounded_to is None or rounded_to is dtype:
        return name
    return f"{name} as {rounded_to.name.removeprefix('torch.')}"


@cache
def _small_values(dtype: DType) -> npt.NDArray[np.float32]:
    """Return what each of the 256 patterns of an 8-bit float stands for."""
    return np.ascontiguousarray(widen(np.arange(256, dtype=np.uint8), dtype), np.float32)


# --- putting together ----------------------------------------------------------------------------


def _add_up(parts: list[PiecePair]) -> PiecePair:
    """Return the numbers of all pieces together; of equal largest errors the first one counts."""
    if len(parts) == 1:
        return parts[0]
    worst = min(parts, key=lambda part: (-part.max_abs_error, part.max_abs_index))
    return PiecePair(
        dot=_add_exactly(part.dot for part in parts),
        candidate_squares=_add_exactly(part.candidate_squares for part in parts),
        reference_squares=_add_exactly(part.reference_squares for part in parts),
        difference_squares=_add_exactly(part.difference_squares for part in parts),
        max_abs_error=worst.max_abs_error,
        max_abs_index=worst.max_abs_index,
        max_relative_error=max(part.max_relative_error for part in parts),
        within=four_of(sum(counts) for counts in zip(*(p.within for p in parts), strict=True)),
        unequal=sum(part.unequal for part in parts),
        nan_mismatch=sum(part.nan_mismatch for part in parts),
        inf_mismatch=sum(part.inf_mismatch for part in parts),
        opposite_infinities=sum(part.opposite_infinities for part in parts),
        candidate_nonfinite=sum(part.candidate_nonfinite for part in parts),
        reference_nonfinite=sum(part.reference_nonfinite for part in parts),
        candidate_peak=max(part.candidate_peak for part in parts),
        reference_peak=max(part.reference_peak for part in parts),
    )


def _add_exactly(parts: Iterable[float]) -> float:
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):
        # Extreme float64, infinite along the way: it is measured again in another scale.
        return math.inf


def _choose_scales(numbers: PiecePair) -> Scales:
    """Return the scales that float64 needs to hold the squares of these numbers."""
    return Scales(
        _choose_scale(numbers.candidate_peak),
        _choose_scale(numbers.reference_peak),
        _choose_scale(numbers.max_abs_error),
    )


def _choose_scale(peak: float) -> float:
    if not peak or math.isinf(peak) or 2.0**-400 < peak < 2.0**400:
        return 1.0
    # Both the scale and its reciprocal are floats.
    return 2.0 ** min(max(math.frexp(peak)[1], -1022), 1022)


def _as_pair_numbers(numbers: PiecePair, layout: PairLayout, scales: Scales) -> PairNumbers:
    times, worst = layout.repeats, numbers.max_abs_index
    return PairNumbers(
        count=times * math.prod(layout.turned),
        dot=numbers.dot * times,
        candidate_squares=numbers.candidate_squares * times,
        reference_squares=numbers.reference_squares * times,
        difference_squares=numbers.difference_squares * times,
        max_abs_error=numbers.max_abs_error,
        max_abs_index=-1 if worst < 0 else find_place(layout, worst),
        max_relative_error=numbers.max_relative_error,
        within=four_of(count * times for count in numbers.within),
        unequal=numbers.unequal * times,
        nan_mismatch=numbers.nan_mismatch * times,
        inf_mismatch=numbers.inf_mismatch * times,
        opposite_infinities=numbers.opposite_infinities * times,
        candidate_nonfinite=numbers.candidate_nonfinite * times,
        reference_nonfinite=numbers.reference_nonfinite * times,
        scales=scales,
    )
