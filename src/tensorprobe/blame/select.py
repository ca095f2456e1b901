"""Plan which calls are replayed: all of them while that is cheap, else the most suspicious.

A replay costs arithmetic, not reading: what counts is how many products and sums a call makes. A
culprit needs nothing behind it to be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import CallAgreement, Distance
from tensorprobe.blame.explain import Unexplained
from tensorprobe.blame.operations import MATRIX, operation_of
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.rows import KEPT_ROWS, rows_of
from tensorprobe.names import ModuleCall, ParameterGradients, forward_of, parse_call

__all__ = ["ReplayPlan", "plan_replays"]

# A few seconds of float64 arithmetic, replays of both sides and draws included: up to this much a
# dump is replayed as a whole, and of a larger one a part that takes about a second.
_BUDGET = 6e7
_PART = 0.25
# The fixed cost of rebuilding and calling, in the same unit.
_CALL = 1e4


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The calls to replay, in this order.

    Attributes:
        calls: the calls.
        is_partial: whether others are left out, so that the first culprit found ends it.
    """

    calls: tuple[CallPair, ...]
    is_partial: bool


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
    able = [pair for pair in pairs if _has_data(agreements[pair.name])]
    differing = [pair for pair in able if _differs(agreements[pair.name])]
    if not differing:
        return ReplayPlan((), False)
    costs = {pair.name: _cost(pair, agreements) for pair in able}
    if sum(costs.values()) <= _BUDGET:
        return ReplayPlan(tuple(able), False)
    last = len(pairs) if settled is None else settled

    def urgency(pair: CallPair) -> tuple[bool, int, float]:
        # What is unexplained comes first, the earliest of it before all; then the largest jumps.
        flagged = pair.name in unexplained
        return (not flagged, pair.position if flagged else 0, -_jump(agreements[pair.name]))

    left = _BUDGET * _PART
    chosen = []
    for pair in sorted(differing, key=urgency):
        if pair.position < last and costs[pair.name] <= left:
            chosen.append(pair)
            left -= costs[pair.name]
    return ReplayPlan(tuple(chosen), True)


def _has_data(agreement: CallAgreement) -> bool:
    return any(output.candidate.data_name is not None for output in agreement.outputs)


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
        forward = agreements.get(_forward_name(pair.name))
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


def _forward_name(name: str) -> str:
    call = parse_call(name)
    if isinstance(call, ParameterGradients):
        return str(ModuleCall(call.path, call.class_name, "forward", call.number or 0))
    return forward_of(name)


def _count(distance: Distance) -> int:
    return math.prod(distance.candidate.shape)
