"""Follow tensors from the call that made them to those that use them, by their statistics.

A dump names no tensors. The result of one call is the input of another when their statistics agree
to the last digit: within one run that does not happen by chance to tensors that matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.blame.order import phase_of
from tensorprobe.records import CallRecord, TensorValue

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
    """

    external: dict[Use, StatisticsKey]
    users: dict[StatisticsKey, list[Use]]


def follow_tensors(calls: Iterable[CallRecord]) -> Links:
    """Find the inputs of forward calls that come from no other call, and the users of each."""
    made: set[StatisticsKey] = set()
    external: dict[Use, StatisticsKey] = {}
    users: dict[StatisticsKey, list[Use]] = {}
    for call in calls:
        if phase_of(call.name) != "forward":
            continue
        results = []
        for leaf in call.leaves():
            if not isinstance(leaf.value, TensorValue):
                continue
            key = statistics_key(leaf.value)
            if key is None:
                continue
            if leaf.section == "output":
                results.append(key)
                continue
            use = Use(call.name, ".".join((leaf.section, *leaf.path)))
            users.setdefault(key, []).append(use)
            if key not in made:
                external[use] = key
        made.update(results)
    return Links(external, users)
