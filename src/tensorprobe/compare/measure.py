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
from typing import Any, NamedTuple

from tensorprobe.compare.leaves import Leaf
from tensorprobe.compare.match import Pair
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

__all__ = ["Measured", "Measurer"]

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

_PIECE_FROM_BYTES = 1 << 24


class Measured(NamedTuple):
    """The six metrics of a pair as cells, and the message that goes with them."""

    cells: tuple[Any, Any, Any, Any, Any, Any]
    message: str


_UNSUPPORTED: tuple[Any, ...] = ("unsupported",) * 6
_SAME = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)


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
        self._seen: dict[tuple[Any, ...], Measured] = {}
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
        """Measure one pair."""
        ours, theirs = pair.candidate, pair.reference
        if theirs is None:
            raise AssertionError("a pair without a partner has nothing to measure")
        try:
            candidate = self._candidate.data_path(ours.data_name or "")
            reference = self._reference.data_path(theirs.data_name or "")
        except DumpError as err:
            raise AssertionError from err
        raise NotImplementedError
