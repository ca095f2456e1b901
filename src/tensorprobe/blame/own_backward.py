"""Recognise a backward that somebody wrote: a torch.autograd.Function with calls of its own inside.

Such calls are recorded as forward calls in the middle of the backward pass. Where only one run
makes them, it is not they who are at fault but the gradient that they compute:

    helpers that only one run makes ─► the backward call that the other run makes in their place
                                   └─► else the call that receives what they make
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import Distance, statistics_distance
from tensorprobe.blame.evidence import results_of
from tensorprobe.blame.order import CallPair, stretch_around
from tensorprobe.blame.places import find_places
from tensorprobe.blame.sides import Side
from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, parse_call
from tensorprobe.records import CallRecord, Frame, TensorValue

__all__ = ["OwnBackward", "find_own_backward", "frame_in_backward"]

_WRITTEN = ("backward", "vjp")


@dataclass(frozen=True, slots=True)
class OwnBackward:
    """A gradient that one run computes with calls of its own.

    Attributes:
        call: the backward call whose gradient that is, or that receives it.
        position: its place in the order of the run.
        place: the value that shows it.
        helpers: the calls inside, of the run that makes them.
        is_candidate: whether that is the run under test.
        result: how far the gradient is apart, where that can be told.
        is_received: whether `call` only receives the gradient.
    """

    call: str
    position: int
    place: str
    helpers: tuple[str, ...]
    is_candidate: bool
    result: Distance | None
    is_received: bool


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


def find_own_backward(
    helper: CallPair, pairs: Sequence[CallPair], candidate: Side, reference: Side
) -> OwnBackward | None:
    """Return the gradient that a call is made for, if it is a helper that only one run has.

    Args:
        helper: a call that only one run makes.
        pairs: all calls, in the order of the run.
        candidate: the run under test.
        reference: the trusted run.
    """
    is_candidate = helper.candidate is not None
    side = candidate if is_candidate else reference
    if helper.phase != "forward" or frame_in_backward(side.part.stack(helper.name)) is None:
        return None
    stretch = stretch_around(helper.position, pairs)
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
            return OwnBackward(
                pair.name, pair.position, "output.0", helpers, is_candidate, result, False
            )
    return _find_receiver(made, helpers, pairs[stretch[-1].position + 1 :], is_candidate)


def _find_receiver(
    made: CallRecord, helpers: tuple[str, ...], behind: Sequence[CallPair], is_candidate: bool
) -> OwnBackward | None:
    """Return the call that gets what the last helper made."""
    result = _first_tensor(made)
    for pair in behind:
        if not _is_api_backward(pair) or pair.candidate is None or pair.reference is None:
            continue
        mine, other = (_first_input(record) for record in (pair.candidate, pair.reference))
        given = mine if is_candidate else other
        if mine is None or other is None or given is None or result is None:
            continue
        if (given.shape, given.norm, given.max) == (result.shape, result.norm, result.max):
            distance = Distance(
                "input.0", statistics_distance(mine, other), "statistics", mine, other
            )
            return OwnBackward(
                pair.name, pair.position, "input.0", helpers, is_candidate, distance, True
            )
    return None


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
