"""Numbers about a pair of arrays of any dtypes, strides and size, on this machine's cores.

    pair ─► drop repetition ─► memory order ─► pieces of 1 MiB ─► threads: kernel or numpy ─► total

Two arrays that lie in memory in the same order are read in that order, without a copy; others are
copied piece by piece. Pieces do not depend on the number of threads and their sums are added
exactly, so neither do the results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DType, dtype_of_numpy, widen
from tensorprobe.metrics.kernel import Kernel, load_kernel
from tensorprobe.metrics.pair_numbers import (
    PairNumbers,
    Unavailable,
    cosine,
    error_ratio,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    relative_distance,
    scalar_errors,
)
from tensorprobe.metrics.pair_numpy import NO_SCALES, PiecePair, Scales, four_of, measure_values
from tensorprobe.metrics.statistics import count_cores
from tensorprobe.tensor_data import TensorData

__all__ = [
    "PairNumbers",
    "Unavailable",
    "cosine",
    "error_ratio",
    "euclidean_distance",
    "max_absolute_error",
    "max_relative_error",
    "measure_arrays",
    "measure_pair",
    "relative_distance",
    "scalar_errors",
]

Array = npt.NDArray[Any]

PIECE_BYTES = 1 << 20
# Below this a thread costs more than it saves.
THREAD_BYTES = 4 << 20


def measure_pair(candidate: TensorData, reference: TensorData, *, threads: int = 0) -> PairNumbers:
    """Return the numbers of two tensors of the same number of elements.

    Tensors of different shapes are compared element by element in C order.

    Args:
        candidate: the tensor under test.
        reference: the tensor that is trusted; its dtype may be another.
        threads: how many threads may work; 0 for all cores of this process.

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
    job = _Job(candidate.dtype, reference.dtype, load_kernel(), NO_SCALES)
    layout = _align(candidate.array, reference.array)
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


# --- order of memory -----------------------------------------------------------------------------


class _Layout(NamedTuple):
    """Two arrays of one shape, to be read in C order, and how they came about.

    Attributes:
        candidate: flat where both could be, else a view with the axes in the order of memory.
        reference: likewise.
        repeats: how often each of these elements is seen.
        shape: the shape before the axes were turned.
        axes: the turned order of the axes.
        flipped: which of the original axes are read backwards.
        once: the turned shape, whose size divides by `repeats`.
    """

    candidate: Array
    reference: Array
    repeats: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    flipped: tuple[bool, ...]
    once: tuple[int, ...]


def _align(candidate: Array, reference: Array) -> _Layout:
    """Turn both arrays alike, so that they are read in the order of memory where that is one."""
    shape, count = candidate.shape, candidate.size
    if candidate.flags.c_contiguous and reference.flags.c_contiguous:
        flat = candidate.reshape(-1), reference.reshape(-1)
        return _Layout(*flat, 1, (count,), (0,), (False,), (count,))
    if candidate.shape != reference.shape:
        # Only one of them may have to be copied, and then piece by piece: see _cut_pieces.
        return _Layout(candidate, reference, 1, (count,), (0,), (False,), (count,))
    strides = list(zip(candidate.strides, reference.strides, strict=True))
    once = tuple(slice(0, 1) if not any(pair) else slice(None) for pair in strides)
    flipped = tuple(max(pair) <= 0 and min(pair) < 0 for pair in strides)
    steps = tuple(slice(None, None, -1 if back else 1) for back in flipped)
    axes = tuple(sorted(range(len(shape)), key=lambda axis: [-abs(x) for x in strides[axis]]))
    sides = [side[once][steps].transpose(axes) for side in (candidate, reference)]
    seen_once, small = sides[0].shape, sides[0].size
    if all(side.flags.c_contiguous for side in sides):
        sides = [side.reshape(-1) for side in sides]
    repeats = count // small if small else 1
    return _Layout(sides[0], sides[1], repeats, shape, axes, flipped, seen_once)


def _find_place(layout: _Layout, index: int) -> int:
    """Return the place in C order of the element that was read as number `index`."""
    if index < 0:
        return index
    turned = np.unravel_index(index, layout.once)
    places = [0] * len(layout.shape)
    for axis, place in zip(layout.axes, turned, strict=True):
        places[axis] = int(place)
    for axis, back in enumerate(layout.flipped):
        if back:
            places[axis] = layout.shape[axis] - 1 - places[axis]
    return int(np.ravel_multi_index(places, layout.shape)) if layout.shape else 0


def _cut_pieces(layout: _Layout, limit: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield where a piece begins, and views or small copies of both sides of it."""
    if layout.candidate.shape == layout.reference.shape:
        yield from _cut_views(layout.candidate, layout.reference, limit, 0)
        return
    for start in range(0, layout.candidate.size, limit):
        part = slice(start, start + limit)
        yield start, layout.candidate.flat[part], layout.reference.flat[part]


def _cut_views(
    candidate: Array, reference: Array, limit: int, start: int
) -> Iterator[tuple[int, Array, Array]]:
    if candidate.size <= limit:
        yield start, candidate, reference
        return
    row = candidate.size // len(candidate)
    rows = limit // row
    if rows:
        for first in range(0, len(candidate), rows):
            part = slice(first, first + rows)
            yield start + first * row, candidate[part], reference[part]
    else:
        for number in range(len(candidate)):
            yield from _cut_views(candidate[number], reference[number], limit, start + number * row)


# --- measuring -----------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What is to be done with each piece."""

    candidate: DType
    reference: DType
    kernel: Kernel | None
    scales: Scales


def _measure(layout: _Layout, job: _Job, threads: int) -> PiecePair:
    """Cut a pair into pieces, give each thread its share, and add up what they made of it."""
    width = max(layout.candidate.itemsize, layout.reference.itemsize)
    limit = PIECE_BYTES // width
    workers = layout.candidate.size * width // THREAD_BYTES
    if workers > 1:
        workers = min(workers, threads or count_cores())

    def take_share(worker: int) -> list[PiecePair]:
        share = itertools.islice(_cut_pieces(layout, limit), worker, None, max(workers, 1))
        return [_measure_piece(*piece, job) for piece in share]

    if workers <= 1:
        return _add_up(take_share(0))
    with ThreadPoolExecutor(workers, thread_name_prefix="tensorprobe") as pool:
        return _add_up(list(itertools.chain(*pool.map(take_share, range(workers)))))


def _measure_piece(start: int, candidate: Array, reference: Array, job: _Job) -> PiecePair:
    a = np.ascontiguousarray(candidate).reshape(-1)
    b = np.ascontiguousarray(reference).reshape(-1)
    numbers = measure_values(widen(a, job.candidate), widen(b, job.reference), job.scales)
    if numbers.max_abs_index < 0:
        return numbers
    return numbers._replace(max_abs_index=numbers.max_abs_index + start)


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
        both_zero=sum(part.both_zero for part in parts),
        reference_zero=sum(part.reference_zero for part in parts),
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
    return 2.0 ** max(math.frexp(peak)[1], -1021)


def _as_pair_numbers(numbers: PiecePair, layout: _Layout, scales: Scales) -> PairNumbers:
    times = layout.repeats
    return PairNumbers(
        count=times * math.prod(layout.once),
        dot=numbers.dot * times,
        candidate_squares=numbers.candidate_squares * times,
        reference_squares=numbers.reference_squares * times,
        difference_squares=numbers.difference_squares * times,
        max_abs_error=numbers.max_abs_error,
        max_abs_index=_find_place(layout, numbers.max_abs_index),
        max_relative_error=numbers.max_relative_error,
        within=four_of(count * times for count in numbers.within),
        unequal=numbers.unequal * times,
        nan_mismatch=numbers.nan_mismatch * times,
        inf_mismatch=numbers.inf_mismatch * times,
        opposite_infinities=numbers.opposite_infinities * times,
        candidate_nonfinite=numbers.candidate_nonfinite * times,
        reference_nonfinite=numbers.reference_nonfinite * times,
        both_zero=numbers.both_zero * times,
        reference_zero=numbers.reference_zero * times,
        scales=scales,
    )
