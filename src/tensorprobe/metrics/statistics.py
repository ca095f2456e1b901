"""Statistics and histograms of one array of any dtype, stride and size on this machine's cores.

    array ─► drop repetition ─► memory order ─► pieces of 1 MiB ─► threads: kernel or numpy ─► total

An expanded array is measured once and weighted, so a scalar seen as 10**12 elements takes no time.
Pieces do not depend on the number of threads and their sums are added exactly, so neither do the
results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DType, widen
from tensorprobe.metrics import statistics_numpy
from tensorprobe.metrics.kernel import Kernel, load_kernel
from tensorprobe.metrics.statistics_numpy import UNITS, PieceStatistics
from tensorprobe.system.cores import count_cores
from tensorprobe.system.thread_pool import ThreadPool

__all__ = ["ArrayStatistics", "count_into_bins", "measure_array"]

Array = npt.NDArray[Any]
Total = TypeVar("Total")

PIECE_BYTES = 1 << 20
# Below this a thread costs more than it saves.
THREAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ArrayStatistics:
    """What one pass over an array tells.

    Counts and `finite_*` are facts about the elements. `max`, `min`, `mean` and `norm` are what
    torch gives for the whole array: any NaN makes all four NaN, infinities count, of bools the
    maximum is `any` and the minimum `all`. All four are None for an empty array.

    Attributes:
        count: all elements.
        nans: how many are NaN.
        positive_infinities: how many are +inf.
        negative_infinities: how many are -inf.
        zeros: how many are zero, of either sign.
        finite_max: the largest finite element, None without any; int or bool as the dtype is.
        finite_min: the smallest finite element likewise.
        finite_sum: sum of the finite elements; infinite where float64 cannot hold it.
        finite_sum_of_squares: sum of the squares of (finite element / scale).
        scale: a power of two, 1.0 but for float64 so extreme that float64 cannot hold its squares.
    """

    count: int
    nans: int
    positive_infinities: int
    negative_infinities: int
    zeros: int
    finite_max: float | None
    finite_min: float | None
    finite_sum: float
    finite_sum_of_squares: float
    scale: float = 1.0

    @property
    def max(self) -> float | None:
        """The largest element."""
        if not self.count:
            return None
        if self.nans:
            return math.nan
        if self.positive_infinities:
            return math.inf
        return -math.inf if self.finite_max is None else self.finite_max

    @property
    def min(self) -> float | None:
        """The smallest element."""
        if not self.count:
            return None
        if self.nans:
            return math.nan
        if self.negative_infinities:
            return -math.inf
        return math.inf if self.finite_min is None else self.finite_min

    @property
    def mean(self) -> float | None:
        """The mean of all elements, of bools as 0 and 1."""
        if not self.count:
            return None
        if self.nans or (self.positive_infinities and self.negative_infinities):
            return math.nan
        if self.positive_infinities or self.negative_infinities:
            return math.inf if self.positive_infinities else -math.inf
        return self.finite_sum / self.count

    @property
    def norm(self) -> float | None:
        """The Euclidean norm of all elements, of bools as 0 and 1."""
        if not self.count:
            return None
        if self.nans:
            return math.nan
        if self.positive_infinities or self.negative_infinities:
            return math.inf
        return math.sqrt(self.finite_sum_of_squares) * self.scale


def measure_array(array: Array, dtype: DType, *, threads: int | None = None) -> ArrayStatistics:
    """Return the statistics of an array; of complex numbers, those of their magnitudes.

    Args:
        array: the elements in the carrier of `dtype`, of any strides and byte order.
        dtype: what the elements are.
        threads: how many threads may work; all cores of this process unless told.

    Raises:
        TypeError: the array is not in the carrier of `dtype`.

    >>> from tensorprobe.dtypes import DTYPES
    >>> statistics = measure_array(np.array([3.0, -4.0]), DTYPES["torch.float64"])
    >>> statistics.max, statistics.min, statistics.mean, statistics.norm
    (3.0, -4.0, -0.5, 5.0)
    >>> measure_array(np.array([0.0, np.nan, np.inf]), DTYPES["torch.float64"]).finite_max
    0.0
    """
    _check_carrier(array, dtype)
    kernel = load_kernel()
    once, repeats = _drop_repetition(array)

    def measure_pieces(pieces: Iterator[Array]) -> list[PieceStatistics]:
        return [_measure_piece(_prepare(piece, dtype), dtype, kernel) for piece in pieces]

    def count_pieces(pieces: Iterator[Array]) -> npt.NDArray[np.int64]:
        return _count_bytes((_prepare(piece, dtype) for piece in pieces), kernel)

    if _is_small_float(dtype):
        counts = sum(_share_pieces(once, count_pieces, threads), np.zeros(256, np.int64))
        parts = [statistics_numpy.weigh_values(_small_values(dtype), counts)]
    else:
        parts = list(itertools.chain(*_share_pieces(once, measure_pieces, threads)))
    return _add_up(parts, dtype, array.size, repeats)


def count_into_bins(
    array: Array, dtype: DType, low: float, high: float, bins: int, *, threads: int | None = None
) -> npt.NDArray[np.int64]:
    """Return how many elements fall into each of `bins` equally wide bins from `low` to `high`.

    Elements outside, infinities and NaN are not counted. The last bin holds `high`, too; with
    `low == high` the first bin holds all that equals them. Complex numbers count by magnitude.

    Args:
        array: the elements in the carrier of `dtype`, of any strides and byte order.
        dtype: what the elements are.
        low: where the first bin begins.
        high: where the last bin ends.
        bins: how many.
        threads: how many threads may work; all cores of this process unless told.

    Raises:
        TypeError: the array is not in the carrier of `dtype`.
        ValueError: not a finite `low <= high`, or no bin.

    >>> from tensorprobe.dtypes import DTYPES
    >>> count_into_bins(np.array([0, 1, 2, 9]), DTYPES["torch.int64"], 0, 2, 2).tolist()
    [1, 2]
    """
    _check_carrier(array, dtype)
    low, high = float(low), float(high)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high and 0 < bins < 2**31 - 1):
        raise ValueError(
            f"got {bins} bins from {low} to {high}, wanted at least one bin and finite low <= high"
        )
    kernel = load_kernel()
    once, repeats = _drop_repetition(array)

    def bin_pieces(pieces: Iterator[Array]) -> npt.NDArray[np.int64]:
        counts = np.zeros(bins, np.int64)
        for piece in pieces:
            _bin_piece(_prepare(piece, dtype), dtype, kernel, low, high, counts)
        return counts

    return sum(_share_pieces(once, bin_pieces, threads), np.zeros(bins, np.int64)) * repeats


def _check_carrier(array: Array, dtype: DType) -> None:
    if array.dtype.newbyteorder("=") != dtype.carrier:
        raise TypeError(f"got an array of {array.dtype}, wanted {dtype.carrier} for {dtype.name}")


# --- cutting -------------------------------------------------------------------------------------


def _drop_repetition(array: Array) -> tuple[Array, int]:
    """Return the part of an expanded array that is in memory, and how often it is seen."""
    once = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    return once, array.size // once.size if once.size else 1


def _order_by_memory(array: Array) -> Array:
    """Return a view with the same elements in the order of memory, flat where it can be."""
    if not array.flags.c_contiguous:
        array = array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in array.strides)]
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        array = array.transpose(axes)
    return array.reshape(-1) if array.flags.c_contiguous else array


def _cut_pieces(array: Array, limit: int) -> Iterator[Array]:
    """Yield views of at most `limit` elements that make up the array."""
    if array.size <= limit:
        yield array
        return
    rows = limit // (array.size // len(array))
    if rows:
        for start in range(0, len(array), rows):
            yield array[start : start + rows]
    else:
        for row in array:
            yield from _cut_pieces(row, limit)


def _share_pieces(
    array: Array, work: Callable[[Iterator[Array]], Total], threads: int | None
) -> list[Total]:
    """Cut an array into pieces, give each thread its share, and return what each made of it."""
    array = _order_by_memory(array)
    limit = max(1, PIECE_BYTES // array.itemsize)
    workers = array.nbytes // THREAD_BYTES
    if workers > 1:
        workers = min(workers, threads or count_cores())
    if workers <= 1:
        return [work(_cut_pieces(array, limit))]

    def take_share(worker: int) -> Total:
        return work(itertools.islice(_cut_pieces(array, limit), worker, None, workers))

    with ThreadPool(workers) as pool:
        return list(pool.map(take_share, range(workers)))


# --- one piece -----------------------------------------------------------------------------------


def _prepare(piece: Array, dtype: DType) -> Array:
    """Return a piece flat, contiguous and in this machine's byte order; complex as magnitudes."""
    flat = np.ascontiguousarray(piece, dtype=dtype.carrier).reshape(-1)
    if dtype.kind != "complex":
        return flat
    with np.errstate(over="ignore", invalid="ignore"):
        # In float64, which no complex64 can overflow.
        values = widen(flat, dtype).astype(np.complex128)
        magnitudes: Array = np.abs(values)
    # abs calls (inf, nan) infinite; a NaN must not hide.
    magnitudes[np.isnan(values.real) | np.isnan(values.imag)] = np.nan
    return magnitudes


def _measure_piece(piece: Array, dtype: DType, kernel: Kernel | None) -> PieceStatistics:
    if kernel is None:
        return statistics_numpy.measure_values(_plain_values(piece, dtype))
    return PieceStatistics(*kernel.measure(piece.ctypes.data, piece.size, _kernel_type(dtype)))


def _bin_piece(
    piece: Array,
    dtype: DType,
    kernel: Kernel | None,
    low: float,
    high: float,
    counts: npt.NDArray[np.int64],
) -> None:
    """Add a piece to the counts of its bins."""
    if kernel is None or _is_small_float(dtype):
        values = _plain_values(piece, dtype)
        counts += statistics_numpy.bin_values(values, low, high, len(counts))
        return
    kernel.histogram(
        piece.ctypes.data,
        piece.size,
        _kernel_type(dtype),
        low,
        high,
        len(counts),
        counts.ctypes.data,
    )


def _count_bytes(pieces: Iterator[Array], kernel: Kernel | None) -> npt.NDArray[np.int64]:
    """Return how often each of the 256 byte values occurs."""
    counts = np.zeros(256, np.int64)
    for piece in pieces:
        if kernel is None:
            counts += np.bincount(piece, minlength=256)
        else:
            kernel.count_bytes(piece.ctypes.data, piece.size, counts.ctypes.data)
    return counts


def _is_small_float(dtype: DType) -> bool:
    """Whether 256 values are all that there are."""
    return dtype.kind == "float" and dtype.itemsize == 1


def _small_values(dtype: DType) -> Array:
    return widen(np.arange(256, dtype=np.uint8), dtype)


def _plain_values(piece: Array, dtype: DType) -> Array:
    return piece if dtype.kind == "complex" else widen(piece, dtype)


def _kernel_type(dtype: DType) -> str:
    return "float64" if dtype.kind == "complex" else dtype.name.removeprefix("torch.")


# --- putting together ----------------------------------------------------------------------------


def _add_up(
    parts: list[PieceStatistics], dtype: DType, count: int, repeats: int
) -> ArrayStatistics:
    sums = [math.fsum(part.sums[unit] for part in parts) for unit in range(len(UNITS))]
    squares = [math.fsum(part.squares[unit] for part in parts) for unit in range(len(UNITS))]
    # The largest unit that was needed; the squares in it cannot leave the range.
    chosen = max((unit for unit in range(len(UNITS)) if squares[unit]), default=1)
    ratios = [(unit, UNITS[unit] / UNITS[chosen]) for unit in range(chosen + 1)]
    total = math.fsum(sums[unit] * ratio for unit, ratio in ratios)
    # Times the ratio twice, for its square can be 0 where the product is not.
    total_squares = math.fsum(squares[unit] * ratio * ratio for unit, ratio in ratios)
    as_dtype = {"bool": bool, "int": int}.get(dtype.kind, float)
    largest = [part.finite_max for part in parts if part.finite_max is not None]
    smallest = [part.finite_min for part in parts if part.finite_min is not None]
    return ArrayStatistics(
        count=count,
        nans=sum(part.nans for part in parts) * repeats,
        positive_infinities=sum(part.positive_infinities for part in parts) * repeats,
        negative_infinities=sum(part.negative_infinities for part in parts) * repeats,
        zeros=sum(part.zeros for part in parts) * repeats,
        finite_max=as_dtype(max(largest)) if largest else None,
        finite_min=as_dtype(min(smallest)) if smallest else None,
        finite_sum=total * repeats * UNITS[chosen],
        finite_sum_of_squares=total_squares * repeats,
        scale=UNITS[chosen],
    )
