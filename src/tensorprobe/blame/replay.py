"""Make a recorded call again on the CPU, from one side's own recorded inputs.

    CallRecord ─► rebuild arguments, each tensor widened, rounded or shaken ─► call ─► results

A backward call is replayed through autograd: the forward call is made again with its recorded
inputs, then the recorded gradients of its outputs are sent back. Tools record different things as
the result (the gradients of the arguments, or those of the last autograd node in its own order), so
a replay offers several readings, and the reader takes the one that the trusted side agrees with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from tensorprobe.blame.call_split import flat_tensors
from tensorprobe.errors import RebuildError
from tensorprobe.operations.facts import RANDOM, UNINITIALISED
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import (
    CallRecord,
    ScalarValue,
    TensorValue,
    Value,
)
from tensorprobe.replay.rebuild import RebuiltCall, rebuild_call
from tensorprobe.replay.refusals import REFUSALS

__all__ = ["Load", "Prepare", "Readings", "replay_backward", "replay_forward", "threads_for"]

Load = Callable[[TensorValue], torch.Tensor]
Prepare = Callable[[torch.Tensor], torch.Tensor]
Readings = dict[str, list["torch.Tensor | None"]]
"""What a replay may be read as: name of the reading to flat results."""

_DROPOUTS = frozenset(("dropout", "dropout_"))

# Products and sums: below this threads wait for each other longer than they work.
_WORTH_THREADS = 3e6


@contextmanager
def threads_for(cost: float) -> Iterator[None]:
    """Let torch use one thread only for what is quickly done."""
    before = torch.get_num_threads()
    if cost < _WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def replay_forward(call: CallRecord, load: Load, prepare: Prepare, *, exact: bool) -> Readings:
    """Make a forward call again and return its flat outputs.

    Args:
        call: the forward record.
        load: gives the recorded tensor of a value.
        prepare: what is done to each tensor before the call is made with it.
        exact: whether the call is made in its own types; otherwise every float type among the
            arguments becomes float64.

    Raises:
        RebuildError: the call cannot be made again here.
    """
    if _draws(call):
        return {"outputs": [_replay_dropout(call, load, prepare)]}
    with torch.no_grad():
        rebuilt = rebuild_call(call, lambda value: prepare(load(value)))
        result = _run(rebuilt if exact else _widened(rebuilt), call.name)
    return {"outputs": [_plain(item) for item in _flatten(result)]}


def replay_backward(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare
) -> Readings:
    """Send the recorded gradients back through a forward call that is made again.

    Raises:
        RebuildError: the call cannot be made again here, or has no gradient.
    """
    if _draws(forward):
        return {"arguments": [_replay_dropout_gradient(backward, forward, load, prepare)]}
    leaves: list[torch.Tensor] = []

    def load_leaf(value: TensorValue) -> torch.Tensor:
        tensor = prepare(load(value)).detach()
        if tensor.is_floating_point() and value.requires_grad is not False:
            tensor.requires_grad_()
        leaves.append(tensor)
        # A clone, so that a call that writes in place may do so.
        return tensor.clone()

    gradients = [
        None if value is None else prepare(load(value)) for value in flat_tensors(backward.inputs)
    ]
    with torch.enable_grad():
        rebuilt = _widened(rebuild_call(forward, load_leaf))
        outputs = list(_flatten(_run(rebuilt, forward.name)))
        if outputs == [None]:
            # A statement such as x[0] = y: what it leaves behind is its result.
            outputs = list(rebuilt.args[:1])
        try:
            return _send_back(outputs, gradients, leaves, backward.name)
        except REFUSALS as err:
            raise RebuildError(f"{backward.name} cannot be replayed: {err}") from err


def _send_back(
    outputs: list[Any],
    gradients: list[torch.Tensor | None],
    leaves: list[torch.Tensor],
    name: str,
) -> Readings:
    tensors = [item for item in outputs if isinstance(item, torch.Tensor)]
    with_graph = [item for item in tensors if item.grad_fn is not None]
    starts = tensors if len(gradients) == len(tensors) else with_graph
    pairs = [
        (out, gradient)
        for out, gradient in zip(starts, gradients, strict=False)
        if gradient is not None and out.grad_fn is not None and out.shape == gradient.shape
    ]
    if not pairs:
        raise RebuildError(f"{name}: its recorded gradients do not fit its outputs")
    readings: Readings = {}
    node: Any = pairs[0][0].grad_fn
    if all(out.grad_fn is node for out, _ in pairs):
        width = 1 + max(item.output_nr for item in with_graph if item.grad_fn is node)
        arriving: list[torch.Tensor | None] = [None] * width
        for out, gradient in pairs:
            arriving[out.output_nr] = gradient
        try:
            results = node(*arriving)
        except (RuntimeError, TypeError):
            results = None  # Some nodes cannot be called on their own; the other reading stays.
        if results is not None:
            items = results if isinstance(results, tuple) else (results,)
            readings["node"] = [None if item is None else item.detach() for item in items]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted:
        found = torch.autograd.grad(
            [out for out, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
        )
        by_leaf = dict(zip(map(id, wanted), found, strict=True))
        readings["arguments"] = [by_leaf.get(id(leaf)) for leaf in leaves]
        readings["found"] = [item for item in readings["arguments"] if item is not None]
    return readings


# --- calls that draw random numbers --------------------------------------------------------------


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


# --- making the call -----------------------------------------------------------------------------


def _widened(call: RebuiltCall) -> RebuiltCall:
    """Return the call with every float type that would round its result made float64."""
    kwargs: Mapping[str, Any] = {key: _wide(item) for key, item in call.kwargs.items()}
    return replace(call, args=tuple(_wide(item) for item in call.args), kwargs=kwargs)


def _wide(argument: Any) -> Any:
    if isinstance(argument, torch.dtype) and argument.is_floating_point:
        return torch.float64
    return argument


def _run(call: RebuiltCall, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            # What the user's run was warned of is not news here.
            warnings.simplefilter("ignore")
            return call.run()
    except REFUSALS as err:
        raise RebuildError(f"{name} cannot be replayed: {err}") from err


def _flatten(result: Any) -> Iterator[Any]:
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _flatten(item)
    elif isinstance(result, dict):
        for item in result.values():
            yield from _flatten(item)
    else:
        yield result


def _plain(item: Any) -> torch.Tensor | None:
    return item.detach() if isinstance(item, torch.Tensor) else None
