"""Find a backward node that was not recorded but computed something else.

Some tools record only the last autograd node of a call. What its other nodes make shows first in
the gradient that arrives at the call before: the sum of what all users of its result send back.
That sum is replayed here from the users' own recorded gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import (
    CallAgreement,
    Distance,
    StatisticsKey,
    is_float,
    is_nonfinite,
    roundoff_of,
    statistics_key,
)
from tensorprobe.blame.evidence import flat_tensors
from tensorprobe.blame.links import Links, Use
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.replays import Replays
from tensorprobe.blame.sides import Side
from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall, forward_of, parse_call
from tensorprobe.records import CallRecord, TensorValue, Value

__all__ = ["FIT", "TIMES", "GapSuspect", "backward_of", "find_gap_suspect", "shortest_roundoff"]

FIT = 64
"""The sum of replayed gradients has roundings that what it is compared with has not: so many."""
TIMES = 10.0
"""What is this many times further off than allowed is told from what is not."""
# Statistics show less of a tensor than its elements, and a sum of gradients may cancel.
_UNSEEN = 256
# Calls of several autograd nodes, the last of which only changes the shape.
_PARTLY_RECORDED = ("Functional.linear.", "Tensor.__matmul__.", "Torch.matmul.", "Tensor.matmul.")


@dataclass(frozen=True, slots=True)
class GapSuspect:
    """A call whose unrecorded backward node is at fault; `place` is where that shows."""

    call: str
    position: int
    place: str
    times: float


def find_gap_suspect(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    candidate: Side,
    reference: Side,
    replays: Replays,
    backgrounds: Mapping[str, float],
    hidden: Mapping[str, float],
    work: float,
) -> GapSuspect | None:
    """Return the first call whose unrecorded backward node made what no other call explains.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        links: where tensors come from.
        candidate: the run under test.
        reference: the trusted run.
        replays: tell who sent a gradient.
        backgrounds: the distance that is usual before each call.
        hidden: the noise of each call's inputs that statistics do not show.
        work: the roundoff that matrix products of this run work in, 0 for their own.
    """
    positions = {pair.name: pair.position for pair in pairs}
    # The last call, as long as nothing differs.
    last: str | None = ""
    for pair in pairs:
        if not isinstance(parse_call(pair.name), ApiCall):
            continue
        before = last
        last = None if before is None or _differs(agreements[pair.name]) else pair.name
        if pair.phase != "backward" or pair.candidate is None or pair.reference is None:
            continue
        if any(_became_nonfinite(d) for d in agreements[pair.name].inputs):
            call = _blame_nonfinite(pair, agreements, links, reference)
            if call is not None:
                place = f"{pair.name}.input.0"
                return GapSuspect(call, positions.get(call, pair.position), place, math.inf)
            continue
        sent = [d for d in agreements[pair.name].inputs if math.isfinite(d.value)]
        own = max((roundoff_of(d.candidate.dtype) for d in sent), default=0.0)
        if not any(d.value > max(FIT * own, 16 * backgrounds[pair.name]) for d in sent):
            continue
        uses = _uses_of(pair.reference, links, reference)
        try:
            found = replays.find_sender(pair, uses, work) if uses else None
        except RebuildError:
            # Without data, or with a user that cannot be replayed, distances have to do.
            noise = max(backgrounds[pair.name], hidden.get(pair.name, 0.0))
            found = _guess(pair, agreements, uses, candidate, reference, noise)
        if found is None and before is not None:
            arrived = max(d.value for d in sent)
            sender = before if _may_have_sent(before) else pair.name
            found = sender, arrived / max(FIT * own, 2.0**-24)
        if found is not None:
            call, times = found
            place = f"{pair.name}.input.0"
            return GapSuspect(call, positions.get(call, pair.position), place, times)
    return None


def _differs(agreement: CallAgreement) -> bool:
    return any(d.value > 0 for d in (*agreement.inputs, *agreement.outputs))


def _may_have_sent(call: str) -> bool:
    """Whether a call is a backward whose gradients are not all recorded.

    Nothing before differs, and then a gradient does: where it comes from was not recorded, and the
    last such call is the nearest that is known.
    """
    return call.startswith(_PARTLY_RECORDED) and call.endswith(".backward")


def _became_nonfinite(distance: Distance) -> bool:
    """Whether a tensor is NaN or infinite somewhere, and its partner is not."""
    return (
        math.isinf(distance.value)
        and distance.basis != "shape"
        and is_nonfinite(distance.candidate)
        and not is_nonfinite(distance.reference)
    )


def _blame_nonfinite(
    pair: CallPair, agreements: Mapping[str, CallAgreement], links: Links, side: Side
) -> str | None:
    """Return who sent a gradient that is not finite, or where it arrived if nobody recorded did."""
    assert pair.reference is not None
    senders = [backward_of(use.call) for use in _uses_of(pair.reference, links, side)]
    for sender in senders:
        agreement = agreements.get(sender)
        if agreement is not None and any(
            _became_nonfinite(d) for d in (*agreement.inputs, *agreement.outputs)
        ):
            return None
    return senders[0] if len(senders) == 1 else pair.name


def _guess(
    pair: CallPair,
    agreements: Mapping[str, CallAgreement],
    uses: Sequence[Use],
    candidate: Side,
    side: Side,
    background: float,
) -> tuple[str, float] | None:
    """Return the user whose gradient was not recorded, if nothing else explains what arrived.

    Or the call at which it arrived, if another gradient was recorded where it was sent.
    """
    assert pair.reference is not None
    arrived = max(d.value for d in agreements[pair.name].inputs if math.isfinite(d.value))
    own = shortest_roundoff(pair.reference, uses, side)
    allowed = max(_UNSEEN * own, FIT * background)
    if arrived <= allowed:
        return None
    if len(uses) == 1 and _was_changed(pair, uses[0], candidate, side):
        return pair.name, arrived / allowed
    silent = []
    for use in uses:
        name = backward_of(use.call)
        agreement, forward = agreements.get(name), agreements.get(use.call)
        if agreement is None or forward is None:
            return None
        known = [d.value for d in (*agreement.inputs, *agreement.outputs, *forward.inputs)]
        if any(not value < arrived / TIMES for value in known):
            return None
        wanted = _argument_size(side.calls[use.call], use)
        sizes = [math.prod(d.reference.shape) for d in agreement.outputs]
        if name.startswith(_PARTLY_RECORDED) or wanted not in sizes:
            silent.append(name)
    return (silent[-1], arrived / allowed) if silent else None


def _was_changed(pair: CallPair, use: Use, candidate: Side, reference: Side) -> bool:
    """Whether a gradient arrives as its only sender gave it in the trusted run, and here not.

    Then something that was not recorded, a hook say, changed it on its way.
    """
    name = backward_of(use.call)
    arrived = (pair.candidate, pair.reference)
    sent = (candidate.calls.get(name), reference.calls.get(name))
    is_same = []
    for call, sender in zip(arrived, sent, strict=True):
        keys = [] if call is None else _keys(call.inputs)
        if not keys or sender is None:
            return False
        is_same.append(keys[0] in _keys(sender.outputs))
    return is_same == [False, True]


def _keys(values: Sequence[Value] | None) -> list[StatisticsKey]:
    found = (statistics_key(value) for value in flat_tensors(values) if value is not None)
    return [key for key in found if key is not None]


def _argument_size(forward: CallRecord, use: Use) -> int:
    for leaf in forward.leaves():
        if ".".join((leaf.section, *leaf.path)) == use.place and isinstance(
            leaf.value, TensorValue
        ):
            return math.prod(leaf.value.shape)
    return -1


def shortest_roundoff(backward: CallRecord, uses: Sequence[Use], side: Side) -> float:
    """Return the largest unit roundoff that the gradients may have passed through.

    Under autocast a gradient of float32 is a sum of some that were cast from 16 bits.
    """
    calls = [backward, *(side.calls[use.call] for use in uses)]
    calls += [side.calls[backward_of(use.call)] for use in uses]
    values = [
        v for call in calls for v in (*flat_tensors(call.inputs), *flat_tensors(call.outputs))
    ]
    return max(
        roundoff_of(value.dtype) for value in values if value is not None and is_float(value)
    )


def _uses_of(backward: CallRecord, links: Links, side: Side) -> list[Use]:
    forward = side.calls.get(forward_of(backward.name))
    if forward is None:
        return []
    result = next((value for value in flat_tensors(forward.outputs) if value is not None), None)
    key = None if result is None else statistics_key(result)
    if key is None:
        return []
    uses = links.users.get(key, [])
    # A view has the content of what it views: only what runs after a call can use its result.
    own = [index for index, use in enumerate(uses) if use.call == forward.name]
    return [
        use
        for use in uses[own[-1] + 1 if own else 0 :]
        if isinstance(parse_call(use.call), ApiCall)
        and use.place.startswith("input.")
        # A view that hooks add shares the content but is no step of its own.
        and not use.call.startswith("Tensor.view_as.")
        and backward_of(use.call) in side.calls
    ]


def backward_of(forward: str) -> str:
    """Return the name of the call that sends a forward call's gradient back."""
    return forward.removesuffix(".forward") + ".backward"
