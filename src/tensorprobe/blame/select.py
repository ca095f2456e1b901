"""Choose which calls are replayed: all of them while that is cheap, else the most suspicious.

A replay costs arithmetic, not reading: what counts is how many products and sums a call makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tensorprobe.blame.agreement import CallAgreement, Distance
from tensorprobe.blame.explain import Unexplained
from tensorprobe.blame.operations import MATRIX, operation_of
from tensorprobe.blame.order import CallPair

__all__ = ["choose_replays"]

# A few seconds of one core's float64 arithmetic, replays of both sides and draws included.
_BUDGET = 2e9
# The fixed cost of rebuilding and calling, in the same unit.
_CALL = 1e4


def choose_replays(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    unexplained: Mapping[str, Unexplained],
) -> list[CallPair]:
    """Return the calls to replay, in the order of the run.

    Calls without data on both sides cannot be, and are left out.
    """
    able = [pair for pair in pairs if _has_data(agreements[pair.name])]
    costs = {pair.name: _cost(pair, agreements[pair.name]) for pair in able}
    if sum(costs.values()) <= _BUDGET:
        return able
    left = _BUDGET
    chosen: set[str] = set()

    def urgency(pair: CallPair) -> tuple[bool, int, float]:
        # What is unexplained comes first, the earliest of it before all; then the largest jumps.
        flagged = pair.name in unexplained
        jump = _jump(agreements[pair.name])
        return (not flagged, pair.position if flagged else 0, -jump)

    for pair in sorted(able, key=urgency):
        if not any(output.value != 0 for output in agreements[pair.name].outputs):
            continue
        if costs[pair.name] <= left:
            chosen.add(pair.name)
            left -= costs[pair.name]
    return [pair for pair in able if pair.name in chosen]


def _has_data(agreement: CallAgreement) -> bool:
    return any(output.candidate.data_name is not None for output in agreement.outputs)


def _jump(agreement: CallAgreement) -> float:
    """Return how much further apart a call's results are than its inputs."""
    went_in = max((d.value for d in agreement.inputs if math.isfinite(d.value)), default=0.0)
    came_out = max((d.value for d in agreement.outputs), default=0.0)
    return came_out / (went_in + 1e-12)


def _cost(pair: CallPair, agreement: CallAgreement) -> float:
    sizes = sorted((_count(d) for d in (*agreement.inputs, *agreement.outputs)), reverse=True)
    work = float(sum(sizes))
    if operation_of(pair.name) in MATRIX and len(sizes) > 2:
        # (m, k), (k, n) and (m, n): their product is (mkn) squared.
        work += math.sqrt(float(sizes[0]) * sizes[1] * sizes[2])
    return _CALL + work * (3 if pair.phase == "backward" else 1)


def _count(distance: Distance) -> int:
    return math.prod(distance.candidate.shape)
