"""Replay calls for blame; those that draw random numbers by what holds of any draw.

A dropout is replayed from what it recorded: where it kept something, that is its input over 1 - p.
"""

from __future__ import annotations

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.operations.facts import RANDOM, UNINITIALISED
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import CallRecord, ScalarValue, Value, flat_tensors
from tensorprobe.replay.readings import Load, Prepare, Readings, read_backward, read_forward

__all__ = ["replay_backward", "replay_forward"]

_DROPOUTS = frozenset(("dropout", "dropout_"))


def replay_forward(call: CallRecord, load: Load, prepare: Prepare, *, exact: bool) -> Readings:
    """Make a forward call again; see `read_forward`.

    Raises:
        RebuildError: the call cannot be made again here, or is another one each time.
    """
    if _draws(call):
        return {"outputs": [_replay_dropout(call, load, prepare)]}
    return read_forward(call, load, prepare, exact=exact)


def replay_backward(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare
) -> Readings:
    """Send recorded gradients back through a call; see `read_backward`.

    Raises:
        RebuildError: the call cannot be made again here, has no gradient, or is another one each
            time.
    """
    if _draws(forward):
        return {"arguments": [_replay_dropout_gradient(backward, forward, load, prepare)]}
    return read_backward(backward, forward, load, prepare)


def _draws(call: CallRecord) -> bool:
    """Whether a call draws random numbers; a dropout that drops nothing does not."""
    operation = operation_of(call.name)
    if operation in UNINITIALISED:
        raise RebuildError(f"{call.name} returns memory that nobody wrote")
    if operation == "scaled_dot_product_attention":
        chance = _argument(call, 4, "dropout_p")
        if isinstance(chance, ScalarValue) and chance.value:
            raise RebuildError(f"{call.name} draws random numbers")
    if operation not in RANDOM:
        return False
    if operation not in _DROPOUTS:
        raise RebuildError(f"{call.name} draws random numbers")
    return _dropout_chance(call) > 0


def _dropout_chance(call: CallRecord) -> float:
    training = _argument(call, 2, "training")
    if isinstance(training, ScalarValue) and not training.value:
        return 0.0
    chance = _argument(call, 1, "p")
    return float(chance.value) if isinstance(chance, ScalarValue) else 0.5  # type: ignore[arg-type]


def _replay_dropout(call: CallRecord, load: Load, prepare: Prepare) -> torch.Tensor:
    """Return what dropout must give where it did not drop; what it dropped is its own affair."""
    given, kept, share = _dropout_parts(call, load, prepare)
    return torch.where(kept, given / share, torch.zeros_like(given))


def _replay_dropout_gradient(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare
) -> torch.Tensor:
    given, kept, share = _dropout_parts(forward, load, prepare)
    gradient = next(flat_tensors(backward.inputs), None)
    recorded = next(flat_tensors(backward.outputs), None)
    if gradient is None or recorded is None:
        raise RebuildError(f"{backward.name}: its gradients were not recorded")
    sent = prepare(load(gradient))
    # Of an input of 0 nobody can tell whether it was dropped: the gradient itself shows it.
    unknown = given == 0
    kept = torch.where(unknown, load(recorded).reshape(sent.shape) != 0, kept)
    return torch.where(kept, sent / share, torch.zeros_like(sent))


def _dropout_parts(
    call: CallRecord, load: Load, prepare: Prepare
) -> tuple[torch.Tensor, torch.Tensor, float]:
    given = next(flat_tensors(call.inputs), None)
    result = next(flat_tensors(call.outputs), None)
    if given is None or result is None:
        raise RebuildError(f"{call.name}: its input or its output was not recorded")
    share = 1 - _dropout_chance(call)
    return prepare(load(given)), load(result) != 0, max(share, 1e-300)


def _argument(call: CallRecord, place: int, key: str) -> Value:
    if call.kwargs and key in call.kwargs:
        return call.kwargs[key]
    inputs = call.inputs or ()
    return inputs[place] if place < len(inputs) else None
