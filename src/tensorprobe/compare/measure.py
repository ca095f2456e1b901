"""Measure pairs of real data: six numbers per pair, or the text that says why there are none.

    pairs ─► known without reading? (one file, equal checksums, seen before)
          ─► map both files ─► one pass (metrics.pair) ─► Measured

Tensors are mapped, measured and let go one after the other, so memory stays small.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

from tensorprobe.compare.leaves import Leaf
from tensorprobe.compare.match import Pair
from tensorprobe.dtypes import dtype_named
from tensorprobe.errors import DumpError
from tensorprobe.metrics.pair import (
    PairNumbers,
    Unavailable,
    cosine,
    error_ratio,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    measure_pair,
    scalar_errors,
)
from tensorprobe.store import RankDump
from tensorprobe.tensor_data import TensorData

__all__ = ["UNSUPPORTED", "Measured", "Measurer", "bytes_of", "measure_data"]

# Part of the table's format, like the texts in `judge`.
_READ_FAILED = "Dump file: {} not found or read failed."
_EMPTY = "This is empty data, can not compare."
_SHAPES_DIFFER = "Shape of NPU and bench Tensor do not match. Skipped."
_PLACES_DIFFER = "The Position of inf or nan in NPU and bench Tensor do not match."
_NO_DIMENSIONS = (
    "This is type of 0-d tensor, can not calculate 'Cosine', 'EucDist', "
    "'One Thousandth Err Ratio' and 'Five Thousandths Err Ratio'."
)
_DTYPES_DIFFER = "Dtype of NPU and bench Tensor do not match."
_ONE_ELEMENT = "This is a 1-d tensor of length 1."
_ZERO = "Cannot compare by Cosine Similarity, All the data is Zero in {} dump data."
_NOT_FINITE = "Cannot compare by {}, the data contains nan/inf/-inf in dump data."


class Measured(NamedTuple):
    """The six metrics of a pair as cells, and the message that goes with them."""

    cells: tuple[Any, ...]
    message: str


UNSUPPORTED: tuple[Any, ...] = ("unsupported",) * 6
# Device and inode of both sides' files.
_Files: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
_SAME: tuple[Any, ...] = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)


class Measurer:
    """Measures the pairs of two dumps on this machine's cores.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        jobs: how many threads; 0 for one per core.
        on_bytes: is told how many bytes of tensors are done, from any thread.
    """

    def __init__(
        self,
        candidate: RankDump,
        reference: RankDump,
        *,
        jobs: int = 0,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._candidate, self._reference = candidate, reference
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._seen: dict[tuple[_Files | None, bool], Measured] = {}
        self._pool = ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)))
        self._jobs = jobs

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def measure_all(self, pairs: list[Pair]) -> list[Measured]:
        """Measure pairs that both have a file, several at a time; the order stays."""
        return list(self._pool.map(self.measure, pairs))

    def measure(self, pair: Pair) -> Measured:
        """Measure one pair whose sides both have a file."""
        ours, theirs = pair.candidate, pair.reference
        if theirs is None or ours.data_name is None or theirs.data_name is None:
            raise ValueError(f"{ours.place} has no data on both sides")
        files = self._identity(ours.data_name, theirs.data_name)
        key = (files, pair.is_transposed)
        measured = self._seen.get(key)
        if measured is None:
            measured = self._known(files, ours, theirs) or self._read(pair, ours, theirs)
            if files is not None:
                self._seen[key] = measured
        if self._on_bytes is not None:
            with self._lock:
                self._on_bytes(bytes_of(ours) + bytes_of(theirs))
        return measured

    def _identity(self, ours: str, theirs: str) -> _Files | None:
        """Say which two files these are, under whatever names; None where one is missing."""
        try:
            first = os.stat(self._candidate.data_file(ours))
            second = os.stat(self._reference.data_file(theirs))
        except (DumpError, OSError, ValueError):
            return None
        return (first.st_dev, first.st_ino), (second.st_dev, second.st_ino)

    def _known(self, files: _Files | None, ours: Leaf, theirs: Leaf) -> Measured | None:
        """Measure without reading: one file on both sides, or equal checksums."""
        is_one_file = files is not None and files[0] == files[1]
        has_equal_sums = ours.checksum is not None and ours.checksum == theirs.checksum
        is_alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        # Where there are no dimensions, what is not finite has another answer.
        if not (is_one_file or has_equal_sums) or not is_alike or not ours.shape:
            return None
        if 0 in ours.shape:
            return Measured(UNSUPPORTED, _EMPTY)
        if math.prod(ours.shape) == 1:
            return Measured(("unsupported", *_SAME[1:]), _ONE_ELEMENT)
        return Measured(_SAME, "")

    def _read(self, pair: Pair, ours: Leaf, theirs: Leaf) -> Measured:
        try:
            candidate = self._candidate.load_file(ours.data_name or "")
        except DumpError:
            return Measured(UNSUPPORTED, _READ_FAILED.format(ours.data_name))
        try:
            reference = self._reference.load_file(theirs.data_name or "")
        except DumpError:
            return Measured(UNSUPPORTED, _READ_FAILED.format(theirs.data_name))
        if pair.is_transposed:
            reference = TensorData(reference.dtype, reference.array.T)
        return measure_data(candidate, reference, threads=self._jobs)


def bytes_of(leaf: Leaf) -> int:
    """Return how many bytes a tensor's data take, 0 where its dtype is not known."""
    dtype = dtype_named(leaf.dtype)
    return 0 if dtype is None else math.prod(leaf.shape) * dtype.itemsize


def measure_data(candidate: TensorData, reference: TensorData, *, threads: int = 0) -> Measured:
    """Return the six metrics of two tensors, or the texts that stand for them.

    >>> import numpy as np
    >>> from tensorprobe.dtypes import DTYPES
    >>> one = TensorData(DTYPES["torch.float32"], np.array([1, 2], np.float32))
    >>> measure_data(one, one)
    Measured(cells=(1.0, 0.0, 0.0, 0.0, 1.0, 1.0), message='')
    """
    if candidate.array.size == 0:
        return Measured(UNSUPPORTED, _EMPTY)
    if candidate.shape != reference.shape:
        return Measured(("shape unmatched",) * 6, _SHAPES_DIFFER)
    numbers = measure_pair(candidate, reference, threads=threads)
    if not candidate.shape:
        return _without_dimensions(numbers)
    if not numbers.nonfinite_places_match:
        return Measured(("N/A",) * 6, _PLACES_DIFFER)
    message = _DTYPES_DIFFER if candidate.dtype != reference.dtype else ""
    similarity = cosine(numbers)
    if isinstance(similarity, Unavailable):
        text, why = _NO_COSINE[similarity]
        message += why
    else:
        text = similarity
    others = (
        euclidean_distance(numbers),
        max_absolute_error(numbers),
        max_relative_error(numbers),
        error_ratio(numbers, 1e-3),
        error_ratio(numbers, 5e-3),
    )
    return Measured((text, *others), message)


_NO_COSINE: dict[Unavailable, tuple[Any, str]] = {
    Unavailable.ONE_ELEMENT: ("unsupported", _ONE_ELEMENT),
    Unavailable.CANDIDATE_ZERO: ("Nan", _ZERO.format("npu")),
    Unavailable.REFERENCE_ZERO: ("Nan", _ZERO.format("Bench")),
}


def _without_dimensions(numbers: PairNumbers) -> Measured:
    absolute, relative = scalar_errors(numbers)
    cells: list[Any] = ["unsupported", "unsupported", absolute, relative, *UNSUPPORTED[:2]]
    message = _NO_DIMENSIONS
    for index, title in ((2, "MaxAbsError"), (3, "MaxRelativeError")):
        if math.isnan(cells[index]):
            cells[index] = "Nan"
            message += _NOT_FINITE.format(title)
    return Measured(tuple(cells), message)
