"""Recognise a backward that somebody wrote: a torch.autograd.Function with calls of its own inside.

Such calls are recorded as forward calls in the middle of the backward pass. Where only one run
makes them, it is not they who are at fault but the gradient that they compute:

    helpers that only one run makes ─► the backward call that the other run makes in their place
                                   └─► else the call that receives what they make
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorprobe.blame.causes import Cause, common_factor
from tensorprobe.blame.context import Context
from tensorprobe.blame.places import find_places
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence
from tensorprobe.blame.rules.lone_call import follower_of, results_around
from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, parse_call
from tensorprobe.pairing.call_pairs import CallPair, stretch_around
from tensorprobe.records import CallRecord, Frame, TensorValue, results_of
from tensorprobe.rounding.distance import Distance, statistics_distance
from tensorprobe.store import RankDump

__all__ = ["OwnBackward", "find_own_backward", "frame_in_backward"]

_WRITTEN = ("backward", "vjp")


def frame_in_backward(frames: Sequence[Frame]) -> Frame | None:
    """Return the line of a backward that somebody wrote in which a call was made, or None.

    Args:
        frames: the call's stack, innermost first.
    """
    written: Frame | None = None
    for frame in frames:
        if frame.path.endswith("torch/autograd/function.py") and frame.function == "apply":
            return written
        # Torch has such functions too: what it computes again for a checkpoint is no helper.
        is_own = find_places((frame,))[0] is frame and "/torch/" not in f"/{frame.path}"
        written = frame if is_own and frame.function in _WRITTEN else None
    return None


def find_own_backward(call: CallInContext) -> OwnBackward | None:
    """Suspect the gradient that a call is made for, if it is a helper that only one run has."""
    context, helper = call.context, call.pair
    is_candidate = helper.candidate is not None
    side = context.candidate if is_candidate else context.reference
    if helper.phase != "forward" or frame_in_backward(side.part.stack(helper.name)) is None:
        return None
    if follower_of(call) is None:
        return None
    stretch = stretch_around(helper.position, context.pairs)
    ours = [pair for pair in stretch if (pair.candidate is not None) == is_candidate]
    theirs = [pair for pair in stretch if (pair.candidate is not None) != is_candidate]
    helpers = tuple(pair.name for pair in ours if pair.phase == "forward")
    if any(pair.phase == "forward" for pair in theirs):
        # Both have a backward of their own, with other calls inside: these tell more.
        return None
    last = next(pair for pair in reversed(ours) if pair.phase == "forward")
    made = last.candidate or last.reference
    assert made is not None
    for pair in theirs:
        record = pair.candidate or pair.reference
        if _is_api_backward(pair) and record is not None:
            mine, other = (made, record) if is_candidate else (record, made)
            result = _distance_between(mine, other)
            return _evidence(pair, "output.0", helpers, is_candidate, result, is_received=False)
    behind = context.pairs[stretch[-1].position + 1 :]
    for pair in behind:
        received = _received(pair, made, is_candidate)
        if received is not None:
            return _evidence(pair, "input.0", helpers, is_candidate, received, is_received=True)
    return None


def _evidence(
    pair: CallPair,
    value_path: str,
    helpers: tuple[str, ...],
    is_candidate: bool,
    result: Distance | None,
    *,
    is_received: bool,
) -> OwnBackward:
    return OwnBackward(
        call=pair.name,
        position=pair.position,
        phase="backward",
        value_path=value_path,
        times=math.inf,
        helpers=helpers,
        is_candidate=is_candidate,
        result=result,
        is_received=is_received,
    )


@dataclass(frozen=True, slots=True)
class OwnBackward(Evidence):
    """A gradient that one run computes with calls of its own.

    Attributes:
        helpers: the calls inside, of the run that makes them.
        is_candidate: whether that is the run under test.
        result: how far the gradient is apart, where that can be told.
        is_received: whether the call only receives the gradient.
    """

    helpers: tuple[str, ...]
    is_candidate: bool
    result: Distance | None
    is_received: bool

    basis = "sequence"
    told_by = "the order of the calls"
    tells_result = False

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return "likely"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        where = "candidate" if self.is_candidate else "reference"
        first, last = self.helpers[0], self.helpers[-1]
        calls = first if len(self.helpers) == 1 else f"{first} to {last}"
        what = "the gradient that arrives here" if self.is_received else "this gradient"
        text = f"only the {where} computes {what} with a backward of its own ({calls})"
        advice = "check that backward against torch.autograd.gradcheck"
        if self.result is None:
            return Cause("computation", text, advice)
        factor = common_factor(self.result.candidate, self.result.reference)
        if factor is not None:
            return Cause("scale", f"{text}; it is {factor:.6g} times the reference's", advice)
        text += f"; it is off by {self.result.value:.1e} of its size"
        return Cause("computation", text, advice)

    def nothing_to_prove(self, cause: Cause) -> str:
        """Return why no replay can show the fault."""
        return "nothing to replay: only one run makes this call, which its record shows"

    def may_be_victim(self, context: Context) -> bool:
        """Whether it may be what the error of an earlier suspect leads to: it was told by that."""
        return True

    def part(self, context: Context) -> RankDump:
        """Return the run that records the gradient."""
        pair = context.pairs[self.position]
        return (context.reference if pair.candidate is None else context.candidate).part

    def stack(self, context: Context) -> Sequence[Frame]:
        """Return where the gradient is computed."""
        side = context.candidate if self.is_candidate else context.reference
        return side.part.stack(self.helpers[-1])

    def results(self, context: Context) -> Iterable[TensorValue | None]:
        """Return what the calls around give: in place, say, it may be recorded of others, too."""
        return results_around(self.position, context)


def _received(pair: CallPair, made: CallRecord, is_candidate: bool) -> Distance | None:
    """Return how far apart what a call gets is, if that is what the last helper made."""
    if not _is_api_backward(pair) or pair.candidate is None or pair.reference is None:
        return None
    result = _first_tensor(made)
    mine, other = (_first_input(record) for record in (pair.candidate, pair.reference))
    given = mine if is_candidate else other
    if mine is None or other is None or given is None or result is None:
        return None
    if (given.shape, given.norm, given.max) != (result.shape, result.norm, result.max):
        return None
    return Distance("input.0", statistics_distance(mine, other), "statistics", mine, other)


def _is_api_backward(pair: CallPair) -> bool:
    try:
        return pair.phase == "backward" and isinstance(parse_call(pair.name), ApiCall)
    except NameFormatError:
        return False


def _distance_between(mine: CallRecord, other: CallRecord) -> Distance | None:
    ours, theirs = _first_tensor(mine), _first_tensor(other)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return Distance("output.0", statistics_distance(ours, theirs), "statistics", ours, theirs)


def _first_tensor(call: CallRecord) -> TensorValue | None:
    return next((value for value in results_of(call) if value is not None), None)


def _first_input(call: CallRecord) -> TensorValue | None:
    first = call.inputs[0] if call.inputs else None
    return first if isinstance(first, TensorValue) else None
