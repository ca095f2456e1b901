"""Decide which calls made an error that nothing excuses: rounding, their inputs, or the whole run.

Three yardsticks, the sharpest that applies:

    theory      what rounding explains (`noise`): an error well beyond it needs no comparison
    the other   what the trusted run's own kernel makes of the same call
    the peers   what the same operation does in the other calls of the same run

A floor is a bound with statistical parts (a few draws, a square root for the growth of
sums), so single elements may pass it by a few times; a norm over many elements may not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorprobe.blame.call_split import CallSplit, OutputSplit
from tensorprobe.dtypes import roundoff_of
from tensorprobe.operations.facts import MATRIX, NORMS
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.run_order import Phase, forward_name, phase_of
from tensorprobe.rounding import tolerances

__all__ = ["Suspicion", "find_suspicions", "working_index"]


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
        if len(calls[family]) <= tolerances.ENOUGH_PEERS:
            continue
        for index in range(len(outputs[0].roundoffs)):
            level = statistics.median(o.candidate.levels[index] for o in outputs)
            peak = statistics.median(o.candidate.peaks[index] for o in outputs)
            if level <= tolerances.USUAL_LEVEL and peak <= tolerances.PEAK / 2:
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
    """Return the yardstick that a result exceeds most; None if it exceeds none."""
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
    result = _Result(
        name=name,
        output=output,
        peak=mine.peaks[index],
        level=mine.levels[index],
        other_peak=other.peaks[other_index],
        other_level=other.levels[other_index],
        is_short=output.once and output.roundoffs[0] < roundoff_of(output.dtype) and index == 0,
        peers=[peer for peer in peers.get(_kind(name, output), []) if peer.call != name],
    )
    measured = ((yardstick(result), measure) for measure, yardstick in _YARDSTICKS)
    times, measure = max(measured)
    return Suspicion(name, output, times, measure, index) if times else None


@dataclass(frozen=True, kw_only=True)
class _Result:
    """One rounded result: the errors of both sides in the precision of the run, and its peers."""

    name: str
    output: OutputSplit
    peak: float
    level: float
    other_peak: float
    other_level: float
    is_short: bool
    peers: Sequence[_Peer]

    @property
    def has_many(self) -> bool:
        """Whether a norm over the elements tells anything."""
        return self.output.count >= tolerances.MANY_ELEMENTS

    @property
    def large_peers(self) -> list[_Peer]:
        """Those of the peers of whose norms the same holds."""
        return [peer for peer in self.peers if peer.elements >= tolerances.MANY_ELEMENTS]


# Each returns how many times the floor an error is, and 0 where it is none by this yardstick.


def _beyond_peak(result: _Result) -> float:
    """One element is far beyond its bound, and beyond what the trusted run shows."""
    most = max(tolerances.PEAK, tolerances.PEAK_OF_OTHER * result.other_peak)
    return result.peak if result.peak > most else 0.0


def _beyond_level(result: _Result) -> float:
    """The norm of the errors is beyond their floor."""
    most = tolerances.LEVEL * max(1.0, result.other_level)
    return result.level if result.has_many and result.level > most else 0.0


def _beyond_one_rounding(result: _Result) -> float:
    """What every sound kernel rounds once is off by more than one rounding.

    Of few elements there is no norm, but not one of them is beyond its bound.
    """
    if not result.is_short:
        return 0.0
    if result.has_many:
        levels = [peer.level for peer in result.large_peers]
        usual = statistics.median(levels) if levels else 0.0
        most = max(1.0, result.other_level, usual)
        return result.level if result.level > tolerances.ONCE * most else 0.0
    if len(result.peers) < tolerances.ENOUGH_PEERS:
        return 0.0
    most = max([1.0, result.other_peak, *(peer.peak for peer in result.peers)])
    return result.peak if result.peak > tolerances.ONCE * most else 0.0


def _beyond_peers(result: _Result) -> float:
    """The same operation in other calls is less far off, and on the other side, too."""
    peers = result.large_peers
    if not result.has_many or len(peers) < tolerances.ENOUGH_PEERS:
        return 0.0
    most = max([result.other_level, *(max(peer.level, peer.other_level) for peer in peers)])
    if result.level <= tolerances.LEAST_LEVEL or result.level <= tolerances.PEERS * most:
        return 0.0
    return result.level / max(most, tolerances.QUIET_PEERS)


def _beyond_common_factor(result: _Result) -> float:
    """The errors have a factor in common, which rounding leaves to chance."""
    peers = result.large_peers
    if not result.has_many or len(peers) < tolerances.ENOUGH_PEERS:
        return 0.0
    factors = [peer.factor for peer in peers]
    factor = _judge_factor(result.name, result.output, result.level, factors)
    return factor if factor > tolerances.FACTOR else 0.0


_YARDSTICKS: tuple[tuple[str, Callable[[_Result], float]], ...] = (
    ("peak", _beyond_peak),
    ("level", _beyond_level),
    ("once", _beyond_one_rounding),
    ("peers", _beyond_peers),
    ("factor", _beyond_common_factor),
)


def _judge_factor(name: str, output: OutputSplit, level: float, others: Sequence[float]) -> float:
    """Return how many times the common factor of a result's errors is above what is usual."""
    mine = abs(output.candidate.scale)
    if not level or not math.isfinite(output.candidate.relative):
        return 0.0
    expected = output.candidate.relative / level
    if mine < tolerances.LEAST_FACTOR * expected:
        return 0.0
    # Kernels of short types keep what is shared in float32.
    shared = min(1.0, roundoff_of("torch.float32") / roundoff_of(output.dtype)) / math.sqrt(
        _count_shared(name, output)
    )
    by_chance = (
        tolerances.FACTOR_DEVIATIONS * expected * math.hypot(1 / math.sqrt(output.count), shared)
    )
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
