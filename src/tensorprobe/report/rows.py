"""The rows that `report` prints, made by other rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.records import CallRecord, Frame, Leaf, Number

__all__ = ["Branch", "Details", "Finding", "Histogram", "TensorDetails"]


@dataclass(frozen=True, slots=True)
class Branch:
    """One call in the tree: how deep it stands, and its record if it is to be shown."""

    name: str
    depth: int
    parent: str | None
    call: CallRecord | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many finite elements fall into each of equally wide bins from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorDetails:
    """What the data of one tensor show; `problem` says why they show nothing."""

    leaf: Leaf
    statistics: Mapping[str, Number | None] = field(default_factory=dict)
    histogram: Histogram | None = None
    first_values: tuple[Any, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Details:
    """Everything about one call."""

    call: CallRecord
    parent: str | None
    children: tuple[str, ...]
    stack: tuple[Frame, ...]
    tensors: tuple[TensorDetails, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `tensorprobe doctor`: what, what was found, and whether it could be better."""

    what: str
    found: str
    is_good: bool = True
