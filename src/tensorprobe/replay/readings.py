"""Make a recorded call again on the CPU in float64, and say what its results may be read as.

    CallRecord ─► rebuild arguments, each tensor widened, rounded or shaken ─► call ─► results

A backward call is replayed through autograd: the forward call is made again with its recorded
inputs, then the recorded gradients of its outputs are sent back. Tools record different things as
the result (the gradients of the arguments, or those of the last autograd node in its own order), so
a replay offers several readings, and the reader takes the one that the trusted side agrees with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.records import CallRecord, TensorValue, flat_tensors
from tensorprobe.replay.precision import with_dtypes
from tensorprobe.replay.rebuild import RebuiltCall, rebuild_call
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.replay.script_parts.repeat import results_of_node

__all__ = ["Load", "Prepare", "Readings", "read_backward", "read_forward"]

Load = Callable[[TensorValue], torch.Tensor]
Prepare = Callable[[torch.Tensor], torch.Tensor]
Readings = dict[str, list["torch.Tensor | None"]]
"""What a replay may be read as: name of the reading to flat results."""


def read_forward(call: CallRecord, load: Load, prepare: Prepare, *, exact: bool) -> Readings:
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
    with torch.no_grad():
        rebuilt = rebuild_call(call, lambda value: prepare(load(value)))
        result = _run(rebuilt if exact else with_dtypes(rebuilt, _widen), call.name)
    return {"outputs": [_plain(item) for item in _flatten(result)]}


def read_backward(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare
) -> Readings:
    """Send the recorded gradients back through a forward call that is made again.

    Raises:
        RebuildError: the call cannot be made again here, or has no gradient.
    """
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
        rebuilt = with_dtypes(rebuild_call(forward, load_leaf), _widen)
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
    of_node = results_of_node(with_graph, pairs)
    if of_node:
        readings["node"] = of_node
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if wanted:
        found = torch.autograd.grad(
            [out for out, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
        )
        by_leaf = dict(zip(map(id, wanted), found, strict=True))
        readings["arguments"] = [by_leaf.get(id(leaf)) for leaf in leaves]
        readings["found"] = [item for item in readings["arguments"] if item is not None]
    return readings


def _widen(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which nothing is rounded that is rounded to this one."""
    return torch.float64 if dtype.is_floating_point else dtype


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
