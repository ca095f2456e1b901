"""Measure pairs of real data: six numbers per pair, or the text that says why there are none.

pairs ─► which files are they? (one file, equal checksums and pairs seen before are known)
─► metrics.pair_stream: map, measure in one pass, let go ─► Measured
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tensorprobe.compare.judge import judge_accuracy
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
    relative_distance,
    scalar_errors,
)
from tensorprobe.metrics.pair_stream import MeasuredPair, PairSource, measure_pairs
from tensorprobe.pairing.match import Pair
from tensorprobe.report.verdict_text import Verdict
from tensorprobe.store import Leaf, RankDump
from tensorprobe.tensor_data import TensorData

__all__ = ["NOT_MEASURED", "DataDistance", "Measured", "Measurer", "bytes_of", "metrics_of"]

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
    """The six metrics of a pair as cells, the message that goes with them, and the verdict."""

    cells: tuple[Any, ...]
    message: str
    verdict: Verdict


class DataDistance(NamedTuple):
    """How far two tensors' data are apart, for who asks later without reading them again.

    Attributes:
        unequal: how many elements differ.
        relative: the norm of the difference over that of the reference; infinite where NaN or
            infinities stand in other places.
        largest: the largest difference of an element.
    """

    unequal: int
    relative: float
    largest: float


_UNSUPPORTED: tuple[Any, ...] = ("unsupported",) * 6
NOT_MEASURED = Measured(_UNSUPPORTED, "", "open")
"""What is said of a pair without data."""

# Device and inode of both sides' files, and whether one lies transposed.
_Files: TypeAlias = tuple[tuple[int, int], tuple[int, int], bool]


class Measurer:
    """Measures the pairs of two dumps on this machine's cores.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        jobs: how many threads; 0 for one per core.
        on_bytes: is told how many bytes of tensors were done since it was told last.

    Attributes:
        distances: of everything that was measured, by the names of both files.
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
        self._jobs = jobs
        self._on_bytes = on_bytes
        self._seen: dict[_Files, Measured] = {}
        self.distances: dict[tuple[str, str], DataDistance] = {}
        self._far: dict[_Files | None, DataDistance] = {}

    def measure_all(self, pairs: list[Pair]) -> list[Measured]:
        """Measure pairs whose sides both have a file, several at a time; the order stays."""
        files = [self._files_of(pair) for pair in pairs]
        # The output of one call is the input of the next: each pair of files is read once.
        wanted: dict[_Files | int, Pair] = {}
        for number, (pair, key) in enumerate(zip(pairs, files, strict=True)):
            if key is None or key not in self._seen:
                wanted.setdefault(number if key is None else key, pair)
        found: dict[_Files | int, Measured] = {}
        sources = (self._source(key, pair) for key, pair in wanted.items())
        for result in measure_pairs(sources, threads=self._jobs):
            pair = wanted[result.key]
            found[result.key] = measured = _as_measured(result, pair)
            if isinstance(result.key, tuple):
                self._seen[result.key] = measured
                if result.numbers is not None:
                    self._far[result.key] = _distance_of(result.numbers)
            self._tell(pair)
        for number, (pair, key) in enumerate(zip(pairs, files, strict=True)):
            if wanted.get(number if key is None else key) is not pair:
                self._tell(pair)
            if key in self._far and not pair.is_transposed:
                self.distances[_names_of(pair)] = self._far[key]
        return [
            found[number] if key is None else self._seen[key] for number, key in enumerate(files)
        ]

    def _tell(self, pair: Pair) -> None:
        if self._on_bytes is not None and pair.reference is not None:
            self._on_bytes(bytes_of(pair.candidate) + bytes_of(pair.reference))

    def _files_of(self, pair: Pair) -> _Files | None:
        """Say which two files these are, under whatever names; None where one is missing."""
        ours, theirs = _names_of(pair)
        try:
            first = self._candidate.identify_file(ours)
            second = self._reference.identify_file(theirs)
        except (DumpError, OSError, ValueError):
            return None
        return first, second, pair.is_transposed

    def _source(self, key: _Files | int, pair: Pair) -> PairSource:
        if pair.reference is None:
            raise ValueError(f"{pair.candidate.place} has no partner")
        return PairSource(
            key,
            partial(self._candidate.load, pair.candidate),
            partial(_load, self._reference, pair.reference, is_transposed=pair.is_transposed),
            _equal_count(key, pair),
        )


def _names_of(pair: Pair) -> tuple[str, str]:
    ours = pair.candidate.data_name
    theirs = None if pair.reference is None else pair.reference.data_name
    if ours is None or theirs is None:
        raise ValueError(f"{pair.candidate.place} has no data on both sides")
    return ours, theirs


def _load(part: RankDump, leaf: Leaf, *, is_transposed: bool) -> TensorData:
    data = part.load(leaf)
    return TensorData(data.dtype, data.array.T) if is_transposed else data


def _equal_count(key: _Files | int, pair: Pair) -> int | None:
    """Return how many elements two sides have that are known to be equal: nothing to read."""
    ours, theirs = pair.candidate, pair.reference
    if theirs is None or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return None
    is_one_file = isinstance(key, tuple) and key[0] == key[1]
    has_equal_sums = ours.checksum is not None and ours.checksum == theirs.checksum
    return math.prod(ours.shape) if is_one_file or has_equal_sums else None


def bytes_of(leaf: Leaf) -> int:
    """Return how many bytes a tensor's data take, 0 where its dtype is not known."""
    dtype = dtype_named(leaf.dtype)
    return 0 if dtype is None else math.prod(leaf.shape) * dtype.itemsize


def _distance_of(numbers: PairNumbers) -> DataDistance:
    if numbers.equal:
        return _NO_DISTANCE
    relative = relative_distance(numbers)
    far = math.inf if isinstance(relative, Unavailable) else relative
    return DataDistance(numbers.unequal, far, numbers.max_abs_error)


_NO_DISTANCE = DataDistance(0, 0.0, 0.0)


def _as_measured(result: MeasuredPair, pair: Pair) -> Measured:
    ours, theirs = pair.candidate, pair.reference
    if result.problem is not None or theirs is None:
        names = dict(zip(("candidate", "reference"), _names_of(pair), strict=True))
        message = _READ_FAILED.format(names.get(result.side, ""))
        return NOT_MEASURED._replace(message=message)
    shape = ours.shape if result.shapes is None else result.shapes[0]
    return metrics_of(result.numbers, shape, has_other_dtype=ours.dtype != theirs.dtype)


def metrics_of(
    numbers: PairNumbers | None, shape: tuple[int, ...], *, has_other_dtype: bool = False
) -> Measured:
    """Return the six metrics of a pair as cells, the message that goes with them, and the verdict.

    Args:
        numbers: what was measured; None where the shapes differ.
        shape: of the candidate.
        has_other_dtype: whether the reference has another dtype, which is then said.
    """
    if 0 in shape:
        return NOT_MEASURED._replace(message=_EMPTY)
    if numbers is None:
        return Measured(("shape unmatched",) * 6, _SHAPES_DIFFER, "unmatched")
    if not shape:
        return _without_dimensions(numbers)
    return _metrics(numbers, _DTYPES_DIFFER if has_other_dtype else "")


def _metrics(numbers: PairNumbers, message: str) -> Measured:
    found, error = cosine(numbers), max_absolute_error(numbers)
    if isinstance(error, Unavailable):
        return Measured(("N/A",) * 6, _PLACES_DIFFER, "failed")
    similarity: float | None
    if isinstance(found, Unavailable):
        similarity = None if found is Unavailable.ONE_ELEMENT else math.nan
        text, why = _NO_COSINE[found]
        message += why
    else:
        # Rounding may leave equal vectors a hair from 1.
        text = similarity = 1.0 if numbers.equal else found
    others = (
        euclidean_distance(numbers),
        error,
        max_relative_error(numbers),
        error_ratio(numbers, 1e-3),
        error_ratio(numbers, 5e-3),
    )
    return Measured((text, *others), message, judge_accuracy(similarity, error))


_NO_COSINE: dict[Unavailable, tuple[Any, str]] = {
    Unavailable.ONE_ELEMENT: ("unsupported", _ONE_ELEMENT),
    Unavailable.CANDIDATE_ZERO: ("Nan", _ZERO.format("npu")),
    Unavailable.REFERENCE_ZERO: ("Nan", _ZERO.format("Bench")),
}


def _without_dimensions(numbers: PairNumbers) -> Measured:
    message = _NO_DIMENSIONS
    cells: list[Any] = []
    errors = zip(("MaxAbsError", "MaxRelativeError"), scalar_errors(numbers), strict=True)
    for title, error in errors:
        if math.isnan(error):
            message += _NOT_FINITE.format(title)
        cells.append("Nan" if math.isnan(error) else error)
    return Measured((*_UNSUPPORTED[:2], *cells, *_UNSUPPORTED[:2]), message, "open")
