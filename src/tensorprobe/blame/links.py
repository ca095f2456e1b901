"""Follow tensors from the call that made them to those that use them, by their statistics.

A dump names no tensors. The result of one call is the input of another when their statistics agree
to the last digit: within one run that does not happen by chance to tensors that matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.pairing.run_order import phase_of
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.rounding.distance import is_float

__all__ = ["Links", "Use", "follow_tensors"]


@dataclass(frozen=True, slots=True)
class Use:
    """Where a tensor stands: the call, and the place of the value in it."""

    call: str
    place: str


@dataclass(frozen=True, slots=True)
class Links:
    """Who made each tensor of a run, and who uses it.

    Attributes:
        external: the inputs that no call before made: data, parameters, buffers, constants, and
            the results of what was not recorded.
        users: the forward calls' inputs with each content, by the content's key.
        makers: the forward calls that give each content, in their order, likewise.
        masks: the inputs without statistics to follow them by (booleans have none) of which no call
            before made the like: the same type and count, or the same last dimension, which a view
            keeps.
    """

    external: dict[Use, StatisticsKey]
    users: dict[StatisticsKey, list[Use]]
    masks: frozenset[Use] = frozenset()
    makers: Mapping[StatisticsKey, Sequence[str]] = field(default_factory=dict)


def follow_tensors(calls: Iterable[CallRecord]) -> Links:
    """Find the inputs of forward calls that come from no other call, and the users of each."""
    made: set[StatisticsKey] = set()
    external: dict[Use, StatisticsKey] = {}
    users: dict[StatisticsKey, list[Use]] = {}
    makers: dict[StatisticsKey, list[str]] = {}
    likes: set[tuple[str, str, int]] = set()
    masks: set[Use] = set()
    for call in calls:
        if phase_of(call.name) != "forward":
            continue
        results: list[StatisticsKey] = []
        made_likes: set[tuple[str, str, int]] = set()
        for leaf in call.leaves():
            if not isinstance(leaf.value, TensorValue):
                continue
            key = statistics_key(leaf.value)
            use = Use(call.name, ".".join((leaf.section, *leaf.path)))
            if key is None:
                if leaf.section == "output":
                    made_likes.update(_likes(leaf.value))
                elif not is_float(leaf.value) and likes.isdisjoint(_likes(leaf.value)):
                    masks.add(use)
                continue
            if leaf.section == "output":
                results.append(key)
                makers.setdefault(key, []).append(call.name)
                continue
            users.setdefault(key, []).append(use)
            if key not in made:
                external[use] = key
        made.update(results)
        likes |= made_likes
    return Links(external, users, frozenset(masks), makers)


def _likes(value: TensorValue) -> tuple[tuple[str, str, int], ...]:
    """Return what a tensor and its views have in common, as far as sizes tell."""
    last = value.shape[-1] if value.shape else 1
    return (value.dtype, "count", math.prod(value.shape)), (value.dtype, "last", last)
