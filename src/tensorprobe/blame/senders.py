"""Say who sent a gradient: replay what all users of a result send back to it, and add that up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tensorprobe.blame.links import Use
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.replay import replay_backward
from tensorprobe.blame.rules.unrecorded_gradient import backward_of, shortest_roundoff
from tensorprobe.errors import RebuildError
from tensorprobe.operations.facts import MATRIX
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, TensorValue, flat_tensors
from tensorprobe.rounding import tolerances

__all__ = ["find_sender"]


def find_sender(
    pair: CallPair, uses: Sequence[Use], candidate: RecordedRun, reference: RecordedRun, work: float
) -> tuple[str, float] | None:
    """Return who sent a gradient that its users' replays do not explain, and how far off it is.

    Args:
        pair: the backward call at which it arrived.
        uses: who used the result that it is the gradient of.
        candidate: the run under test.
        reference: the trusted run.
        work: the roundoff that matrix products of this run work in, 0 for their own.

    Raises:
        RebuildError: data are missing, or a user cannot be replayed.
    """
    assert pair.candidate is not None and pair.reference is not None
    theirs = _sum_of_gradients(pair.reference, uses, reference)
    wanted = _arrived(pair.reference, reference)
    own = shortest_roundoff(pair.reference, uses, reference)
    if any(operation_of(use.call) in MATRIX for use in uses):
        own = max(own, work)
    floor = tolerances.SUM_FITS * own
    other = _relative(wanted, theirs)
    if other > floor:
        return None
    ours = _sum_of_gradients(pair.candidate, uses, candidate)
    got = _arrived(pair.candidate, candidate)
    error = _relative(got, ours)
    if error <= tolerances.SENDER_TIMES * max(other, floor / 8):
        return None
    times = error / max(other, floor / 8)
    if len(uses) == 1 and _sent_right(uses[0], ours, candidate, floor):
        # Between the two, a hook say, something that was not recorded changed the gradient.
        return pair.name, times
    return _blame_user(got, uses, candidate), times


def _sent_right(use: Use, wanted: torch.Tensor, side: RecordedRun, floor: float) -> bool:
    """Whether the only user of a result recorded the gradient that its replay gives."""
    sent = flat_tensors(side.calls[backward_of(use.call)].outputs)
    return any(
        value is not None
        and value.data_name is not None
        and value.shape == tuple(wanted.shape)
        and _relative(side.load(value), wanted) <= floor
        for value in sent
    )


def _arrived(backward: CallRecord, side: RecordedRun) -> torch.Tensor:
    value = next((item for item in flat_tensors(backward.inputs) if item is not None), None)
    if value is None:
        raise RebuildError(f"{backward.name}: its gradient was not recorded")
    return side.load(value)


def _sum_of_gradients(backward: CallRecord, uses: Sequence[Use], side: RecordedRun) -> torch.Tensor:
    total: torch.Tensor | None = None
    for use in uses:
        gradient = _gradient_of(use, side)
        total = gradient if total is None else total + gradient.reshape(total.shape)
    assert total is not None
    return total


def _gradient_of(use: Use, side: RecordedRun) -> torch.Tensor:
    """Return what one user of a tensor sends back to it, in float64."""
    forward, backward = side.calls[use.call], side.calls[backward_of(use.call)]
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


def _blame_user(got: torch.Tensor, uses: Sequence[Use], side: RecordedRun) -> str:
    """Return the user whose gradient points most along what is left over."""
    gradients = [_gradient_of(use, side).reshape(got.shape) for use in uses]
    error = got.to(torch.float64) - torch.stack(gradients).sum(0)

    def likeness(index: int) -> float:
        size = float(gradients[index].norm()) * float(error.norm())
        return abs(float((gradients[index] * error).sum())) / size if size else 0.0

    best = max(range(len(uses)), key=likeness)
    return backward_of(uses[best].call)


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if got.numel() != wanted.numel():
        raise RebuildError("the replayed gradients have another shape")
    difference = got.double() - wanted.reshape(got.shape)
    size = float(wanted.norm())
    return float(difference.norm()) / size if size else math.inf
