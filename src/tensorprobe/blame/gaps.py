"""Find a backward node that was not recorded but computed something else.

Some tools record only the last autograd node of a call. What its other nodes make shows first in
the gradient that arrives at the call before: the sum of what all users of its result send back.
That sum is replayed here from the users' own recorded gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from tensorprobe.blame.operations import MATRIX, operation_of
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.sides import Side
from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall, forward_of, parse_call
from tensorprobe.records import CallRecord, TensorValue, Value

if TYPE_CHECKING:
    import torch

__all__ = ["GapSuspect", "find_gap_suspect"]

# The sum of replayed gradients has one rounding for each user more than what it is compared with.
_FIT = 64
_TIMES = 10.0
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
        if not any(d.value > max(_FIT * own, 16 * backgrounds[pair.name]) for d in sent):
            continue
        try:
            found = _check(pair, links, candidate, reference, work)
        except (RebuildError, RuntimeError):
            # Without data, or with a user that cannot be replayed, distances have to do.
            noise = max(backgrounds[pair.name], hidden.get(pair.name, 0.0))
            found = _guess(pair, agreements, links, candidate, reference, noise)
        finally:
            candidate.forget()
            reference.forget()
        if found is None and before is not None:
            arrived = max(d.value for d in sent)
            sender = before if _may_have_sent(before) else pair.name
            found = sender, arrived / max(_FIT * own, 2.0**-24)
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
    senders = [_backward_of(use.call) for use in _uses_of(pair.reference, links, side)]
    for sender in senders:
        agreement = agreements.get(sender)
        if agreement is not None and any(
            _became_nonfinite(d) for d in (*agreement.inputs, *agreement.outputs)
        ):
            return None
    return senders[0] if len(senders) == 1 else pair.name


def _check(
    pair: CallPair, links: Links, candidate: Side, reference: Side, work: float
) -> tuple[str, float] | None:
    assert pair.candidate is not None and pair.reference is not None
    uses = _uses_of(pair.reference, links, reference)
    if not uses:
        return None
    theirs = _sum_of_gradients(pair.reference, uses, reference)
    wanted = _arrived(pair.reference, reference)
    own = _shortest_roundoff(pair.reference, uses, reference)
    if any(operation_of(use.call) in MATRIX for use in uses):
        own = max(own, work)
    floor = _FIT * own
    other = _relative(wanted, theirs)
    if other > floor:
        return None
    ours = _sum_of_gradients(pair.candidate, uses, candidate)
    got = _arrived(pair.candidate, candidate)
    error = _relative(got, ours)
    if error <= _TIMES * max(other, floor / 8):
        return None
    times = error / max(other, floor / 8)
    if len(uses) == 1 and _sent_right(uses[0], ours, candidate, floor):
        # Between the two, a hook say, something that was not recorded changed the gradient.
        return pair.name, times
    return _blame_user(got, uses, candidate), times


def _sent_right(use: Use, wanted: torch.Tensor, side: Side, floor: float) -> bool:
    """Whether the only user of a result recorded the gradient that its replay gives."""
    sent = flat_tensors(side.calls[_backward_of(use.call)].outputs)
    return any(
        value is not None
        and value.data_name is not None
        and value.shape == tuple(wanted.shape)
        and _relative(side.load(value), wanted) <= floor
        for value in sent
    )


def _guess(
    pair: CallPair,
    agreements: Mapping[str, CallAgreement],
    links: Links,
    candidate: Side,
    side: Side,
    background: float,
) -> tuple[str, float] | None:
    """Return the user whose gradient was not recorded, if nothing else explains what arrived.

    Or the call at which it arrived, if another gradient was recorded where it was sent.
    """
    assert pair.reference is not None
    arrived = max(d.value for d in agreements[pair.name].inputs if math.isfinite(d.value))
    uses = _uses_of(pair.reference, links, side)
    if not uses:
        return None
    own = _shortest_roundoff(pair.reference, uses, side)
    allowed = max(_UNSEEN * own, _FIT * background)
    if arrived <= allowed:
        return None
    if len(uses) == 1 and _was_changed(pair, uses[0], candidate, side):
        return pair.name, arrived / allowed
    silent = []
    for use in uses:
        name = _backward_of(use.call)
        agreement, forward = agreements.get(name), agreements.get(use.call)
        if agreement is None or forward is None:
            return None
        known = [d.value for d in (*agreement.inputs, *agreement.outputs, *forward.inputs)]
        if any(not value < arrived / _TIMES for value in known):
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
    name = _backward_of(use.call)
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


def _shortest_roundoff(backward: CallRecord, uses: Sequence[Use], side: Side) -> float:
    """Return the largest unit roundoff that the gradients may have passed through.

    Under autocast a gradient of float32 is a sum of some that were cast from 16 bits.
    """
    calls = [backward, *(side.calls[use.call] for use in uses)]
    calls += [side.calls[_backward_of(use.call)] for use in uses]
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
        and _backward_of(use.call) in side.calls
    ]


def _backward_of(forward: str) -> str:
    return forward.removesuffix(".forward") + ".backward"


def _arrived(backward: CallRecord, side: Side) -> torch.Tensor:
    value = next((item for item in flat_tensors(backward.inputs) if item is not None), None)
    if value is None:
        raise RebuildError(f"{backward.name}: its gradient was not recorded")
    return side.load(value)


def _sum_of_gradients(backward: CallRecord, uses: Sequence[Use], side: Side) -> torch.Tensor:
    total: torch.Tensor | None = None
    for use in uses:
        gradient = _gradient_of(use, side)
        total = gradient if total is None else total + gradient.reshape(total.shape)
    assert total is not None
    return total


def _gradient_of(use: Use, side: Side) -> torch.Tensor:
    """Return what one user of a tensor sends back to it, in float64."""
    # Here and not above: where nothing arrives that is off, nobody waits for torch.
    import torch

    from tensorprobe.blame.replay import replay_backward

    forward, backward = side.calls[use.call], side.calls[_backward_of(use.call)]
    readings = replay_backward(
        backward,
        forward,
        side.load,
        lambda t: t.to(torch.float64) if t.is_floating_point() else t,
    )
    tensors = [
        index for index, value in enumerate(forward.inputs or ()) if isinstance(value, TensorValue)
    ]
    index = int(use.place.removeprefix("input.").partition(".")[0])
    results = readings.get("arguments", [])
    place = tensors.index(index) if index in tensors else -1
    found = results[place] if 0 <= place < len(results) else None
    if found is None:
        raise RebuildError(f"{use.call}: the gradient of {use.place} cannot be replayed")
    return found


def _blame_user(got: torch.Tensor, uses: Sequence[Use], side: Side) -> str:
    """Return the user whose gradient points most along what is left over."""
    import torch

    gradients = [_gradient_of(use, side).reshape(got.shape) for use in uses]
    error = got.to(torch.float64) - torch.stack(gradients).sum(0)

    def likeness(index: int) -> float:
        size = float(gradients[index].norm()) * float(error.norm())
        return abs(float((gradients[index] * error).sum())) / size if size else 0.0

    best = max(range(len(uses)), key=likeness)
    return _backward_of(uses[best].call)


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if got.numel() != wanted.numel():
        raise RebuildError("the replayed gradients have another shape")
    difference = got.double() - wanted.reshape(got.shape)
    size = float(wanted.norm())
    return float(difference.norm()) / size if size else math.inf
