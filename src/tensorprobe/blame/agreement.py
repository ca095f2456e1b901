"""How far two runs' tensors are apart, from whatever was recorded: data, statistics or a checksum.

A distance is relative to the size of the tensor, and the largest of what is known of it: one
element that is off is not washed out by the others.

    data          norm of the difference over the norm; largest difference over the largest element
    statistics    change of max, min and mean over the largest element; change of norm over the norm
    checksum      0 or unknown
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.order import CallPair
from tensorprobe.blame.sides import Side
from tensorprobe.dtypes import dtype_named
from tensorprobe.errors import DumpError
from tensorprobe.metrics.pair import measure_pair
from tensorprobe.metrics.pair_numbers import Unavailable, relative_distance
from tensorprobe.records import Leaf, TensorValue

__all__ = [
    "CallAgreement",
    "Distance",
    "Meter",
    "is_float",
    "is_nonfinite",
    "largest_element",
    "significant_bits",
    "statistics_key",
]

_BITS = {"torch.float64": 53, "torch.float32": 24, "torch.float16": 11, "torch.bfloat16": 8}

StatisticsKey = tuple[int, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one tensor of the candidate is from its partner.

    Attributes:
        place: `input.0`, `output.1`, `parameters.weight`.
        value: the relative distance; infinite where only one side is finite or shapes differ.
        basis: data, statistics, checksum or shape.
        candidate: the candidate's tensor.
        reference: its partner.
        averages: of statistics: how far means and norms are apart, each relative to the size of
            what it averages. They hold still where single elements are noisy.
    """

    place: str
    value: float
    basis: str
    candidate: TensorValue
    reference: TensorValue
    averages: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CallAgreement:
    """The distances of everything that went into a call and came out of it."""

    inputs: tuple[Distance, ...]
    outputs: tuple[Distance, ...]


class Meter:
    """Measures pairs of tensors, each once.

    A tensor is recorded where it comes out of a call and where it goes into others; statistics to
    the last digit on both sides tell that it is the same pair. What comes out is always measured:
    an operation that puts the right values into wrong places keeps all statistics.
    """

    def __init__(self, candidate: Side, reference: Side) -> None:
        self._candidate, self._reference = candidate, reference
        self._known: dict[tuple[StatisticsKey, StatisticsKey], float] = {}
        self.measured_bytes = 0

    def measure_call(self, pair: CallPair) -> CallAgreement:
        """Return the distances of a call's tensors that both runs have."""
        if pair.candidate is None or pair.reference is None:
            return CallAgreement((), ())
        theirs = {_place(leaf): leaf.value for leaf in pair.reference.leaves()}
        inputs: list[Distance] = []
        outputs: list[Distance] = []
        for leaf in pair.candidate.leaves():
            place = _place(leaf)
            other = theirs.get(place)
            if isinstance(leaf.value, TensorValue) and isinstance(other, TensorValue):
                is_output = leaf.section in ("output", "")
                distance = self._measure(place, leaf.value, other, afresh=is_output)
                (outputs if is_output else inputs).append(distance)
        return CallAgreement(tuple(inputs), tuple(outputs))

    def _measure(
        self, place: str, mine: TensorValue, other: TensorValue, *, afresh: bool
    ) -> Distance:
        if mine.shape != other.shape:
            return Distance(place, math.inf, "shape", mine, other)
        if mine.data_name is not None and other.data_name is not None:
            ours, theirs = statistics_key(mine), statistics_key(other)
            keys = None if ours is None or theirs is None else (ours, theirs)
            known = None if afresh or keys is None else self._known.get(keys)
            if known is None:
                known = self._measure_data(mine, other)
            if keys is not None:
                self._known[keys] = known
            return Distance(place, known, "data", mine, other)
        if mine.checksum is not None and other.checksum is not None:
            if mine.checksum == other.checksum and mine.dtype == other.dtype:
                return Distance(place, 0.0, "checksum", mine, other)
            if mine.norm is None or other.norm is None:
                return Distance(place, math.nan, "checksum", mine, other)
        largest, averages = _statistics_distances(mine, other)
        value = max(largest, *averages, 0.0)
        return Distance(place, value, "statistics", mine, other, averages)

    def _measure_data(self, mine: TensorValue, other: TensorValue) -> float:
        try:
            ours, theirs = self._candidate.part.load(mine), self._reference.part.load(other)
        except DumpError:
            largest, averages = _statistics_distances(mine, other)
            return max(largest, *averages, 0.0)
        self.measured_bytes += ours.nbytes + theirs.nbytes
        numbers = measure_pair(ours, theirs)
        if not numbers.unequal:
            return 0.0
        norm = relative_distance(numbers)
        if isinstance(norm, Unavailable):
            return math.inf
        size = largest_element(other)
        return max(norm, numbers.max_abs_error / size) if size else norm


def _place(leaf: Leaf) -> str:
    return ".".join((leaf.section, *leaf.path)) if leaf.section else ".".join(leaf.path)


def largest_element(value: TensorValue) -> float:
    """Return the size of a tensor's largest element as its statistics tell it, 0 if unknown."""
    sizes = [abs(float(item)) for item in (value.max, value.min) if item is not None]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def statistics_key(value: TensorValue) -> StatisticsKey | None:
    """Return what identifies a tensor's content within a run, or None where too little is known.

    A view has other sizes but the same numbers, so the count of elements stands for the shape.
    """
    if value.norm is None or value.mean is None or value.max is None or value.min is None:
        return None
    numbers = tuple(float(item) for item in (value.max, value.min, value.mean, value.norm))
    if any(math.isnan(number) for number in numbers):
        return None
    return (math.prod(value.shape), *numbers)  # type: ignore[return-value]


def _statistics_distances(mine: TensorValue, other: TensorValue) -> tuple[float, tuple[float, ...]]:
    """Return how far extremes are apart, and how far averages are (mean, norm), each relative."""
    size, norm = largest_element(other), _finite(other.norm)
    extremes = (
        _relative(mine.max, other.max, size),
        _relative(mine.min, other.min, size),
    )
    averages = (
        _relative(mine.mean, other.mean, size),
        _relative(mine.norm, other.norm, abs(norm)),
    )
    return max(extremes), averages


def _relative(
    mine: bool | int | float | None, other: bool | int | float | None, scale: float
) -> float:
    if mine is None or other is None:
        return 0.0 if mine is other else math.inf
    a, b = float(mine), float(other)
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not math.isfinite(a) or not math.isfinite(b):
        return math.inf
    return abs(a - b) / scale if scale else math.inf


def _finite(item: bool | int | float | None) -> float:
    number = 0.0 if item is None else float(item)
    return number if math.isfinite(number) else 0.0


def is_float(value: TensorValue) -> bool:
    """Whether a tensor holds numbers that are rounded."""
    dtype = dtype_named(value.dtype)
    return dtype is not None and dtype.kind in ("float", "complex")


def is_nonfinite(value: TensorValue) -> bool:
    """Whether a tensor's statistics show NaN or infinities."""
    numbers = [float(item) for item in (value.max, value.min, value.norm) if item is not None]
    return any(not math.isfinite(number) for number in numbers)


def significant_bits(dtype: str) -> int:
    """Return the significant bits of a float type by its name; 53 for types without rounding."""
    if dtype.startswith("torch.float8"):
        return 3
    return _BITS.get(dtype, 53)
