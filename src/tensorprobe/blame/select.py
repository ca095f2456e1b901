"""Plan which calls are replayed: all of them while that is cheap, else the most suspicious.

A replay costs arithmetic, not reading: what counts is how many products and sums a call makes. A
culprit needs nothing behind it to be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorprobe.blame.rows import KEPT_ROWS, rows_of
from tensorprobe.dtypes import dtype_named
from tensorprobe.operations.facts import EXACT, MATRIX
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.pairing.run_order import forward_name
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance
from tensorprobe.rounding.explain import Unexplained

__all__ = ["ReplayPlan", "plan_doubts", "plan_replays"]

# A few seconds of float64 arithmetic, replays of both sides and draws included: up to this much a
# dump is replayed as a whole, and of a larger one a part that takes about a second.
_BUDGET = 6e7
_PART = 0.25
# Doubts about more calls than these are not settled in a moment.
_DOUBTS = 12
# The fixed cost of rebuilding and calling, in the same unit.
_CALL = 1e4


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The calls to replay, in this order.

    Attributes:
        calls: the calls.
        is_partial: whether others are left out, so that the first culprit found ends it.
        costs: what each call costs, in products and sums.
    """

    calls: tuple[CallPair, ...]
    is_partial: bool
    costs: Mapping[str, float] = field(default_factory=dict)


def plan_replays(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    unexplained: Mapping[str, Unexplained],
    settled: int | None,
) -> ReplayPlan:
    """Return what to replay; calls without data on both sides cannot be.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        unexplained: what the distances alone cannot explain.
        settled: the position of the first suspect that needs no replay.
    """
    able = [pair for pair in pairs if _can_be_replayed(pair, agreements[pair.name])]
    differing = [pair for pair in able if _differs(agreements[pair.name])]
    if not differing:
        return ReplayPlan((), False)
    costs = {pair.name: _cost(pair, agreements) for pair in able}
    if sum(costs.values()) <= _BUDGET:
        return ReplayPlan(tuple(able), False, costs)
    last = len(pairs) if settled is None else settled

    def urgency(pair: CallPair) -> tuple[bool, int, float]:
        # What is unexplained comes first, the earliest of it before all; then the largest jumps.
        flagged = pair.name in unexplained
        return (not flagged, pair.position if flagged else 0, -_jump(agreements[pair.name]))

    before = [pair for pair in differing if pair.position < last]
    chosen = tuple(_affordable(sorted(before, key=urgency), costs))
    return ReplayPlan(chosen, True, costs)


def plan_doubts(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    unexplained: Mapping[str, Unexplained],
    settled: int | None,
) -> ReplayPlan:
    """Return only those calls to replay that may be the culprit but leave a doubt.

    Nothing behind the first call beyond doubt matters. Where there is none, everything is replayed
    if that can be afforded: what does not stand out may be at fault all the same. The arguments are
    those of `plan_replays`.
    """
    whole = plan_replays(pairs, agreements, unexplained, settled)
    last = len(pairs) if settled is None else settled
    doubts = []
    for pair in pairs[:last]:
        found = unexplained.get(pair.name)
        if found is not None and found.times >= tolerances.BEYOND_DOUBT:
            last = pair.position
            break
        if found is not None and _can_be_replayed(pair, agreements[pair.name]):
            doubts.append(pair)
    if last == len(pairs) and not whole.is_partial:
        return whole
    return ReplayPlan(tuple(_affordable(doubts[:_DOUBTS], whole.costs)), True, whole.costs)


def _affordable(pairs: Iterable[CallPair], costs: Mapping[str, float]) -> Iterator[CallPair]:
    left = _BUDGET * _PART
    for pair in pairs:
        if costs[pair.name] <= left:
            left -= costs[pair.name]
            yield pair


def _can_be_replayed(pair: CallPair, agreement: CallAgreement) -> bool:
    """Whether a call has results with data, of types of which a replay tells the error.

    Of complex numbers it tells only whether they are the same.
    """
    if not any(output.candidate.data_name is not None for output in agreement.outputs):
        return False
    types = [dtype_named(v.dtype) for d in agreement.outputs for v in (d.candidate, d.reference)]
    kinds = {None if dtype is None else dtype.kind for dtype in types}
    if pair.phase == "backward":
        return kinds == {"float"}
    return None not in kinds and ("complex" not in kinds or operation_of(pair.name) in EXACT)


def _differs(agreement: CallAgreement) -> bool:
    return any(output.value != 0 for output in agreement.outputs)


def _jump(agreement: CallAgreement) -> float:
    """Return how much further apart a call's results are than its inputs."""
    went_in = max((d.value for d in agreement.inputs if math.isfinite(d.value)), default=0.0)
    came_out = max((d.value for d in agreement.outputs), default=0.0)
    return came_out / (went_in + 1e-12)


def _cost(pair: CallPair, agreements: Mapping[str, CallAgreement]) -> float:
    agreement = agreements[pair.name]
    distances = [*agreement.inputs, *agreement.outputs]
    if pair.phase == "backward":
        forward = agreements.get(forward_name(pair.name))
        distances += [] if forward is None else [*forward.inputs, *forward.outputs]
    sizes = sorted(map(_count, distances), reverse=True)
    work = float(sum(sizes))
    if (operation_of(pair.name) in MATRIX or pair.name.startswith("Module.")) and len(sizes) > 2:
        # (m, k), (k, n) and (m, n): their product is (mkn) squared.
        work += math.sqrt(float(sizes[0]) * sizes[1] * sizes[2])
    rows = rows_of(pair)
    if rows:
        # What is read to find the rows costs little more than nothing.
        work = work * KEPT_ROWS / rows + sum(sizes) / 16
    return _CALL + work * (3 if pair.phase == "backward" else 1)


def _count(distance: Distance) -> int:
    return math.prod(distance.candidate.shape)
