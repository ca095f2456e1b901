"""Find a backward node that was not recorded but computed something else.

Some tools record only the last autograd node of a call. What its other nodes make shows first in
the gradient that arrives at the call before: the sum of what all users of its result send back.
That sum is replayed here from the users' own recorded gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.blame.causes import Cause
from tensorprobe.blame.context import Context
from tensorprobe.blame.links import Links, Use
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.rules.evidence import Confidence, Evidence
from tensorprobe.dtypes import roundoff_of
from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall, forward_of, parse_call
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, TensorValue, Value, flat_tensors
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float, is_nonfinite

__all__ = [
    "UnrecordedGradient",
    "backward_of",
    "find_unrecorded_gradient",
    "shortest_roundoff",
]

# Calls of several autograd nodes, the last of which only changes the shape.
_PARTLY_RECORDED = ("Functional.linear.", "Tensor.__matmul__.", "Torch.matmul.", "Tensor.matmul.")


def find_unrecorded_gradient(
    context: Context, found: Sequence[Evidence]
) -> UnrecordedGradient | None:
    """Suspect the first call whose unrecorded backward node made what no other call explains.

    Where a forward call is suspected, what it leads to on the way back is no fault of its own.
    """
    if any(evidence.phase == "forward" for evidence in found):
        return None
    if context.effort.settles_doubts and found:
        return None
    pairs = context.pairs
    if any(p.candidate is None or p.reference is None for p in pairs if p.phase == "forward"):
        # Tensors are followed in both runs by the calls that use them, which must be the same.
        return None
    until = min((evidence.position for evidence in found), default=len(pairs))
    positions = {pair.name: pair.position for pair in pairs[:until]}
    # The last call, as long as nothing differs.
    last: str | None = ""
    for pair in pairs[:until]:
        if not isinstance(parse_call(pair.name), ApiCall):
            continue
        before = last
        is_same = before is not None and not _differs(context.agreements[pair.name])
        last = pair.name if is_same else None
        if pair.phase != "backward" or pair.candidate is None or pair.reference is None:
            continue
        sender = _find_sender(pair, before, context)
        if sender is not None:
            call, times = sender
            return UnrecordedGradient(
                call=call,
                position=positions.get(call, pair.position),
                phase="backward",
                value_path=f"{pair.name}.input.0",
                times=times,
                arrives_at=pair.name,
            )
    return None


@dataclass(frozen=True, slots=True)
class UnrecordedGradient(Evidence):
    """A call whose unrecorded backward node is at fault.

    Attributes:
        arrives_at: the call at which that shows.
    """

    arrives_at: str

    basis = "gap"
    told_by = "the gradients that were sent and those that arrive"

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return "likely"

    @property
    def made_words(self) -> str:
        """Nothing: its own result was not recorded."""
        return ""

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        if math.isinf(self.times):
            return Cause(
                "non-finite",
                f"a gradient arrives at {self.value_path} with NaN or infinities, and no recorded "
                "result before it has any",
                "capture this call's gradients with tensorprobe, or at level mix",
            )
        if self.arrives_at == self.call:
            return Cause(
                "computation",
                "the gradient that arrives here is not the one that was sent: what changes it "
                "between two recorded calls was not recorded",
                "look for a hook or a function of its own on this call's result",
            )
        return Cause(
            "computation",
            f"one of its backward nodes was not recorded; its gradient arrives wrong at "
            f"{self.value_path}",
            "capture this call's gradients with tensorprobe, or at level mix",
        )

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next."""
        info = context.candidate.part.info
        if info.tool != "tensorprobe":
            mix = "" if info.level == "mix" else ", or at level mix"
            return f"capture this call's gradients with tensorprobe{mix}"
        return (
            "look at how its gradient is made: a backward or a hook of its own, or a custom kernel"
        )

    def may_be_victim(self, context: Context) -> bool:
        """Whether the error of an earlier suspect may lead to it: nothing else shows it."""
        return True


def _find_sender(pair: CallPair, before: str | None, context: Context) -> tuple[str, float] | None:
    """Return who sent a gradient that no recorded call explains, and how far off it is."""
    assert pair.reference is not None
    inputs = context.agreements[pair.name].inputs
    if any(_became_nonfinite(d) for d in inputs):
        call = _blame_nonfinite(pair, context.agreements, context.links, context.reference)
        return None if call is None else (call, math.inf)
    sent = [d for d in inputs if math.isfinite(d.value)]
    own = max((roundoff_of(d.candidate.dtype) for d in sent), default=0.0)
    background = context.walk.typical_before[pair.name]
    if not any(
        d.value > max(tolerances.SUM_FITS * own, tolerances.USUAL_TIMES * background) for d in sent
    ):
        return None
    uses = _uses_of(pair.reference, context.links, context.reference)
    try:
        found = context.replays.find_sender(pair, uses, context.work) if uses else None
    except RebuildError:
        # Without data, or with a user that cannot be replayed, distances have to do.
        noise = max(background, context.walk.hidden.get(pair.name, 0.0))
        found = _guess(pair, uses, context, noise)
    if found is None and before is not None:
        arrived = max(d.value for d in sent)
        sender = before if _may_have_sent(before) else pair.name
        found = sender, arrived / max(tolerances.SUM_FITS * own, roundoff_of("torch.float32"))
    return found


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
    pair: CallPair, agreements: Mapping[str, CallAgreement], links: Links, side: RecordedRun
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
    pair: CallPair, uses: Sequence[Use], context: Context, background: float
) -> tuple[str, float] | None:
    """Return the user whose gradient was not recorded, if nothing else explains what arrived.

    Or the call at which it arrived, if another gradient was recorded where it was sent.
    """
    assert pair.reference is not None
    agreements, side = context.agreements, context.reference
    arrived = max(d.value for d in agreements[pair.name].inputs if math.isfinite(d.value))
    own = shortest_roundoff(pair.reference, uses, side)
    allowed = max(tolerances.UNSEEN_SUM * own, tolerances.SUM_FITS * background)
    if arrived <= allowed:
        return None
    if len(uses) == 1 and _was_changed(pair, uses[0], context.candidate, side):
        return pair.name, arrived / allowed
    silent = []
    for use in uses:
        name = backward_of(use.call)
        agreement, forward = agreements.get(name), agreements.get(use.call)
        if agreement is None or forward is None:
            return None
        known = [d.value for d in (*agreement.inputs, *agreement.outputs, *forward.inputs)]
        if any(not value < arrived / tolerances.SENDER_TIMES for value in known):
            return None
        wanted = _argument_size(side.calls[use.call], use)
        sizes = [math.prod(d.reference.shape) for d in agreement.outputs]
        if name.startswith(_PARTLY_RECORDED) or wanted not in sizes:
            silent.append(name)
    return (silent[-1], arrived / allowed) if silent else None


def _was_changed(pair: CallPair, use: Use, candidate: RecordedRun, reference: RecordedRun) -> bool:
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


def shortest_roundoff(backward: CallRecord, uses: Sequence[Use], side: RecordedRun) -> float:
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


def _uses_of(backward: CallRecord, links: Links, side: RecordedRun) -> list[Use]:
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
