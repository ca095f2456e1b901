"""Measure how far the tensors of two runs are apart, by whatever was recorded, each pair once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorprobe.blame.buffers import means_nothing
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.compare.measure import DataDistance, Measurer
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.pairing.match import Pair
from tensorprobe.records import TensorValue
from tensorprobe.rounding.distance import (
    CallAgreement,
    Distance,
    largest_element,
    statistics_distance,
    statistics_distances,
)
from tensorprobe.rounding.recorded import agree_as_recorded
from tensorprobe.store.leaves import flat_leaf

__all__ = [
    "Meter",
    "StatisticsKey",
    "statistics_key",
]

StatisticsKey = tuple[int, float, float, float, float]


_AT_ONCE = 512


class _Found(NamedTuple):
    """What a pass over the calls finds: two tensors at a place, and what they are."""

    place: str
    mine: TensorValue
    other: TensorValue
    is_output: bool
    is_transposed: bool


class Meter:
    """Measures the tensors of paired calls, each pair of them once.

    A tensor is recorded where it comes out of a call and where it goes into others; statistics to
    the last digit on both sides tell that it is the same pair. What comes out is always measured:
    an operation that puts the right values into wrong places keeps all statistics.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        known: what has been measured already, by the names of both files.
    """

    def __init__(
        self,
        candidate: RecordedRun,
        reference: RecordedRun,
        known: Mapping[tuple[str, str], DataDistance] | None = None,
    ) -> None:
        self._rank = candidate.part.info.rank
        self._tools_differ = candidate.part.info.tool != reference.part.info.tool
        self._measurer = Measurer(candidate.part, reference.part)
        self._measurer.distances.update(known or {})
        self._by_statistics: dict[tuple[StatisticsKey, StatisticsKey], float] = {}

    def measure_calls(self, pairs: Sequence[CallPair]) -> dict[str, CallAgreement]:
        """Return the distances of all calls' tensors that both runs have, by the calls' names."""
        found = [(pair.name, list(_tensors_of(pair, self._rank))) for pair in pairs]
        self._measure_data([item for _, items in found for item in items])
        agreements = {}
        for name, items in found:
            inputs: list[Distance] = []
            outputs: list[Distance] = []
            for item in items:
                (outputs if item.is_output else inputs).append(self._distance(item))
            # What only the reference has may carry the name of another call of the candidate's.
            if items or name not in agreements:
                agreements[name] = CallAgreement(tuple(inputs), tuple(outputs))
        return agreements

    def _measure_data(self, found: Sequence[_Found]) -> None:
        """Read what is not known yet, on all cores."""
        wanted: dict[tuple[str, str], Pair] = {}
        seen: set[tuple[StatisticsKey, StatisticsKey]] = set()
        for item in found:
            _, mine, other, is_output, is_transposed = item
            if mine.data_name is None or other.data_name is None or not _has_one_shape(item):
                continue
            names = (mine.data_name, other.data_name)
            keys = _keys_of(mine, other)
            is_known = names in self._measurer.distances or (not is_output and keys in seen)
            if keys is not None:
                seen.add(keys)
            if not is_known:
                wanted[names] = Pair(flat_leaf("", mine), flat_leaf("", other), "", is_transposed)
        pairs = list(wanted.values())
        for start in range(0, len(pairs), _AT_ONCE):
            self._measurer.measure_all(pairs[start : start + _AT_ONCE])

    def _distance(self, found: _Found) -> Distance:
        place, mine, other = found[:3]
        if not _has_one_shape(found):
            return Distance(place, math.inf, "shape", mine, other)
        if mine.data_name is not None and other.data_name is not None:
            return Distance(place, self._data_distance(mine, other), "data", mine, other)
        if mine.checksum is not None and other.checksum is not None:
            if mine.checksum == other.checksum and mine.dtype == other.dtype:
                return Distance(place, 0.0, "checksum", mine, other)
            if mine.norm is None or other.norm is None:
                return Distance(place, math.nan, "checksum", mine, other)
        if agree_as_recorded(mine, other, tools_differ=self._tools_differ):
            return Distance(place, 0.0, "statistics", mine, other)
        averages = statistics_distances(mine, other)[1]
        return Distance(
            place, statistics_distance(mine, other), "statistics", mine, other, averages
        )

    def _data_distance(self, mine: TensorValue, other: TensorValue) -> float:
        found = self._measurer.distances.get((str(mine.data_name), str(other.data_name)))
        keys = _keys_of(mine, other)
        if found is None:
            # The same pair under other names, or what cannot be read.
            known = None if keys is None else self._by_statistics.get(keys)
            return statistics_distance(mine, other) if known is None else known
        distance = 0.0
        if found.unequal:
            size = largest_element(other)
            distance = max(found.relative, found.largest / size) if size else found.relative
        if keys is not None:
            self._by_statistics[keys] = distance
        return distance


def _tensors_of(pair: CallPair, rank: int | None) -> Iterator[_Found]:
    call = pair.candidate
    if call is None or pair.reference is None:
        return
    for place, leaf, partner, is_transposed, _ in pair.values():
        if leaf is None or partner is None or means_nothing(call, leaf, place, rank):
            continue
        mine, other = leaf.value, partner.value
        if isinstance(mine, TensorValue) and isinstance(other, TensorValue):
            yield _Found(place, mine, other, leaf.section in ("output", ""), is_transposed)


def _has_one_shape(found: _Found) -> bool:
    shape = found.other.shape
    return found.mine.shape == (shape[::-1] if found.is_transposed else shape)


def _keys_of(mine: TensorValue, other: TensorValue) -> tuple[StatisticsKey, StatisticsKey] | None:
    ours, theirs = statistics_key(mine), statistics_key(other)
    return None if ours is None or theirs is None else (ours, theirs)


def statistics_key(value: TensorValue) -> StatisticsKey | None:
    """Return what identifies a tensor's content within a run, or None where too little is known.

    A view has other sizes but the same numbers, so the count of elements stands for the shape.
    Where there are no statistics, a checksum stands for all of them.
    """
    if value.norm is None or value.mean is None or value.max is None or value.min is None:
        return _checksum_key(value)
    numbers = tuple(float(item) for item in (value.max, value.min, value.mean, value.norm))
    if any(math.isnan(number) for number in numbers):
        return None
    return (math.prod(value.shape), *numbers)  # type: ignore[return-value]


def _checksum_key(value: TensorValue) -> StatisticsKey | None:
    try:
        number = float(int(value.checksum or "", 16))
    except (ValueError, OverflowError):
        # No checksum: a text, or of so many digits that no float holds them.
        return None
    return (math.prod(value.shape), number, number, number, number)
