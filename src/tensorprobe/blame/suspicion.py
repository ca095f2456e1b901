"""Decide which calls made an error that nothing excuses: rounding, their inputs, or the whole run.

Three yardsticks, the sharpest that applies:

    theory      what rounding explains (`noise`): an error well beyond it needs no comparison
    the other   what the trusted run's own kernel makes of the same call
    the peers   what the same operation does in the other calls of the same run

The factors below are not thresholds of accuracy: they are how far an honest estimate of a noise may
be off. A floor is a bound with statistical parts (a few draws, a square root for the growth of
sums), so single elements may pass it by a few times; a norm over many elements may not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorprobe.blame.call_split import CallSplit, OutputSplit
from tensorprobe.blame.order import Phase, forward_name, phase_of
from tensorprobe.dtypes import roundoff_of, significant_bits
from tensorprobe.operations.facts import MATRIX, NORMS
from tensorprobe.operations.spelling import operation_of

__all__ = ["Suspicion", "find_suspicions", "working_index"]

# One element beyond its bound by this much is no tail of a distribution any more.
_PEAK = 10.0
# A norm over this many elements is known to a few percent, so three times it is a difference.
_LEVEL = 3.0
_MANY = 32
# Correct rounding has one outcome for each value: a level of 1. Truncation has 2, and nothing that
# rounds once lies between.
_ONCE = 1.5
# Against calls of the same kind in the same run; and enough of them to know what they do.
_PEERS = 2.5
_ENOUGH_PEERS = 2
_LEAST = 0.7
# Peers that make no error at all do not make a floor of 0.
_QUIET = 0.1
# Rounding has no common direction: of n elements it leaves 1 / sqrt(n) on their common factor.
# Beyond so many times that, and what other calls and the trusted run show, a factor is a fault.
_FACTOR = 3.0
_DEVIATIONS = 3.0
_LEAST_FACTOR = 0.5
# The whole run works in fewer bits when half of its matrix products do.
_USUAL = 2.0


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One result whose error was made in its call.

    Attributes:
        call: the call's name.
        output: the result and its numbers.
        times: how many times the error is above its floor.
        measure: which yardstick tells: exact, nonfinite, peak, level, once, peers or factor.
        working: the index of the roundoff that the run works in.
    """

    call: str
    output: OutputSplit
    times: float
    measure: str
    working: int


def find_suspicions(splits: Sequence[CallSplit]) -> list[Suspicion]:
    """Return the results whose errors nothing excuses, in the order of the calls."""
    working = working_index(splits)
    peers = _collect_levels(splits, working)
    found = []
    for split in splits:
        suspicions = [
            suspicion
            for output in split.outputs
            if (suspicion := _suspect(split.name, output, working, peers)) is not None
        ]
        if suspicions:
            found.append(max(suspicions, key=lambda suspicion: suspicion.times))
    return found


class _Peer(NamedTuple):
    """What one call's result shows: levels, common factors and peaks of both sides' errors."""

    call: str
    elements: int
    level: float
    other_level: float
    factor: float
    peak: float


_Family = tuple[str, str]
_Kind = tuple[str, Phase, str, str]


def working_index(splits: Iterable[CallSplit]) -> dict[_Family, int]:
    """Return in which of its roundoffs each family of operations works in this run.

    A device that runs matrix products on shorter operands does so everywhere; then that is how the
    run works, and no single call of it is at fault.
    """
    members: dict[_Family, list[OutputSplit]] = {}
    # One call's result and gradients say nothing of the others.
    calls: dict[_Family, set[str]] = {}
    for split in splits:
        for output in split.outputs:
            if len(output.roundoffs) > 1 and output.candidate.levels[0] > 0:
                family = _family(split.name, output)
                members.setdefault(family, []).append(output)
                calls.setdefault(family, set()).add(forward_name(split.name))
    found = {}
    for family, outputs in members.items():
        if len(calls[family]) <= _ENOUGH_PEERS:
            continue
        for index in range(len(outputs[0].roundoffs)):
            level = statistics.median(o.candidate.levels[index] for o in outputs)
            peak = statistics.median(o.candidate.peaks[index] for o in outputs)
            if level <= _USUAL and peak <= _PEAK / 2:
                break
        found[family] = index
    return found


def _family(name: str, output: OutputSplit) -> _Family:
    operation = operation_of(name)
    return ("matrix products" if operation in MATRIX else operation, output.dtype)


def _index(name: str, output: OutputSplit, working: dict[_Family, int]) -> int:
    return min(working.get(_family(name, output), 0), len(output.candidate.levels) - 1)


def _kind(name: str, output: OutputSplit) -> _Kind:
    return (operation_of(name), phase_of(name), output.place, output.dtype)


def _collect_levels(
    splits: Iterable[CallSplit], working: dict[_Family, int]
) -> dict[_Kind, list[_Peer]]:
    """Return what calls of each kind show."""
    found: dict[_Kind, list[_Peer]] = {}
    for split in splits:
        for output in split.outputs:
            if output.exact:
                continue
            index = _index(split.name, output, working)
            theirs = output.reference.levels
            other = min(index, len(theirs) - 1)
            found.setdefault(_kind(split.name, output), []).append(
                _Peer(
                    split.name,
                    output.count,
                    output.candidate.levels[index],
                    theirs[other],
                    max(abs(output.candidate.scale), abs(output.reference.scale)),
                    max(output.candidate.peaks[index], output.reference.peaks[other]),
                )
            )
    return found


def _suspect(
    name: str,
    output: OutputSplit,
    working: dict[_Family, int],
    peers: dict[_Kind, list[_Peer]],
) -> Suspicion | None:
    mine, other = output.candidate, output.reference
    if output.exact:
        if mine.unequal and not other.unequal:
            measure = "nonfinite" if mine.nonfinite else "exact"
            return Suspicion(name, output, math.inf, measure, 0)
        return None
    if mine.nonfinite and not other.nonfinite:
        return Suspicion(name, output, math.inf, "nonfinite", 0)
    index = _index(name, output, working)
    other_index = min(index, len(other.levels) - 1)
    peak, level = mine.peaks[index], mine.levels[index]
    other_peak, other_level = other.peaks[other_index], other.levels[other_index]
    many = output.count >= _MANY
    found: list[tuple[float, str]] = []
    if peak > max(_PEAK, 4 * other_peak):
        found.append((peak, "peak"))
    if many and level > _LEVEL * max(1.0, other_level):
        found.append((level, "level"))
    calls = [peer for peer in peers.get(_kind(name, output), []) if peer.call != name]
    others = [peer for peer in calls if peer.elements >= _MANY]
    usual = statistics.median(peer.level for peer in others) if others else 0.0
    is_short = output.once and output.roundoffs[0] < roundoff_of(output.dtype)
    if many and is_short and index == 0 and level > _ONCE * max(1.0, other_level, usual):
        found.append((level, "once"))
    if not many and is_short and index == 0 and len(calls) >= _ENOUGH_PEERS:
        # Too few for a norm; but of what is rounded once not one element is beyond its bound.
        most = max([1.0, other_peak, *(peer.peak for peer in calls)])
        if peak > _ONCE * most:
            found.append((peak, "once"))
    if many and len(others) >= _ENOUGH_PEERS:
        most = max([other_level, *(max(peer.level, peer.other_level) for peer in others)])
        if level > _LEAST and level > _PEERS * most:
            found.append((level / max(most, _QUIET), "peers"))
        factor = _judge_factor(name, output, level, [peer.factor for peer in others])
        if factor > _FACTOR:
            found.append((factor, "factor"))
    if not found:
        return None
    times, measure = max(found)
    return Suspicion(name, output, times, measure, index)


def _judge_factor(name: str, output: OutputSplit, level: float, others: Sequence[float]) -> float:
    """Return how many times the common factor of a result's errors is above what is usual."""
    mine = abs(output.candidate.scale)
    if not level or not math.isfinite(output.candidate.relative):
        return 0.0
    expected = output.candidate.relative / level
    if mine < _LEAST_FACTOR * expected:
        return 0.0
    bits = significant_bits(output.dtype)
    # Kernels of short types keep what is shared in float32.
    shared = min(1.0, 2.0 ** (bits - 24)) / math.sqrt(_count_shared(name, output))
    by_chance = _DEVIATIONS * expected * math.hypot(1 / math.sqrt(output.count), shared)
    return mine / max(by_chance, abs(output.reference.scale), *others)


def _count_shared(name: str, output: OutputSplit) -> int:
    """Return how many parts of a result share no rounding.

    A norm divides each row, channel or group by one number.
    """
    operation, shape = operation_of(name), output.shape
    if operation not in NORMS or len(shape) < 2:
        return output.count
    if operation in ("layer_norm", "rms_norm"):
        return output.count // shape[-1]
    return {"batch_norm": shape[1], "group_norm": shape[0]}.get(operation, shape[0] * shape[1])
