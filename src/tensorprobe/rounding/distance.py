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

from tensorprobe.dtypes import is_rounded
from tensorprobe.records import TensorValue

__all__ = [
    "CallAgreement",
    "Distance",
    "is_float",
    "is_nonfinite",
    "largest_element",
    "statistics_distance",
    "statistics_distances",
]


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


def largest_element(value: TensorValue) -> float:
    """Return the size of a tensor's largest element as its statistics tell it, 0 if unknown."""
    sizes = [abs(float(item)) for item in (value.max, value.min) if item is not None]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def statistics_distance(mine: TensorValue, other: TensorValue) -> float:
    """Return how far two tensors are apart as their statistics tell it, relative to their size."""
    largest, averages = statistics_distances(mine, other)
    return max(largest, *averages, 0.0)


def statistics_distances(mine: TensorValue, other: TensorValue) -> tuple[float, tuple[float, ...]]:
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
    return is_rounded(value.dtype)


def is_nonfinite(value: TensorValue) -> bool:
    """Whether a tensor's statistics show NaN or infinities."""
    numbers = [float(item) for item in (value.max, value.min, value.norm) if item is not None]
    return any(not math.isfinite(number) for number in numbers)
