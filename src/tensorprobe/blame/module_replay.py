"""Replay a module's call from what a dump at level L0 holds: its inputs and its parameters.

A dump does not hold a module's settings (stride, eps, approximation). Those that shapes tell are
derived, the others are torch's defaults; whether that is the module that ran shows when the trusted
run's own result is compared with the replay, and a replay that does not fit is not used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from tensorprobe.blame.evidence import flat_tensors
from tensorprobe.blame.replay import Load, Prepare, Readings
from tensorprobe.errors import RebuildError
from tensorprobe.names import ModuleCall, parse_call
from tensorprobe.records import CallRecord, TensorValue

__all__ = ["replay_module_backward", "replay_module_forward"]

_Parameters = Mapping[str, torch.Tensor]
_Function = Callable[[Sequence[torch.Tensor], _Parameters, tuple[int, ...]], torch.Tensor]


def replay_module_forward(call: CallRecord, load: Load, prepare: Prepare) -> Readings:
    """Make a module's forward call again.

    Raises:
        RebuildError: its class is not known here, or its record does not fit it.
    """
    with torch.no_grad():
        inputs, parameters = _given(call, lambda value: prepare(load(value)))
        return {"outputs": [_run(call, inputs, parameters)]}


def replay_module_backward(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare
) -> Readings:
    """Send the gradient of a module's output back: gradients of its inputs and its parameters.

    Raises:
        RebuildError: as for the forward call, or no gradient was recorded.
    """

    def load_leaf(value: TensorValue) -> torch.Tensor:
        tensor = prepare(load(value)).detach()
        return tensor.requires_grad_() if tensor.is_floating_point() else tensor

    sent = next((value for value in flat_tensors(backward.inputs) if value is not None), None)
    if sent is None:
        raise RebuildError(f"{backward.name}: its gradient was not recorded")
    with torch.enable_grad():
        inputs, parameters = _given(forward, load_leaf)
        output = _run(forward, inputs, parameters)
        gradient = prepare(load(sent))
        if output.grad_fn is None or output.shape != gradient.shape:
            raise RebuildError(f"{backward.name}: its gradient does not fit its output")
        leaves = [tensor for tensor in (*inputs, *parameters.values()) if tensor.requires_grad]
        found = torch.autograd.grad(output, leaves, gradient, allow_unused=True)
    by_leaf = dict(zip(map(id, leaves), found, strict=True))
    return {
        "arguments": [by_leaf.get(id(tensor)) for tensor in inputs],
        "parameters": [by_leaf.get(id(tensor)) for tensor in parameters.values()],
    }


def _given(call: CallRecord, load: Load) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    inputs = [load(value) for value in flat_tensors(call.inputs) if value is not None]
    if not inputs:
        raise RebuildError(f"{call.name}: its inputs were not recorded")
    parameters = {
        key: load(value)
        for key, value in (call.parameters or {}).items()
        if isinstance(value, TensorValue)
    }
    return inputs, parameters


def _run(call: CallRecord, inputs: Sequence[torch.Tensor], parameters: _Parameters) -> torch.Tensor:
    name = parse_call(call.name)
    function = _FUNCTIONS.get(name.class_name) if isinstance(name, ModuleCall) else None
    if function is None:
        raise RebuildError(f"{call.name}: what its class computes is not known here")
    result = next((value for value in flat_tensors(call.outputs) if value is not None), None)
    if result is None:
        raise RebuildError(f"{call.name}: its output was not recorded")
    try:
        return function(inputs, parameters, result.shape)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as err:
        raise RebuildError(f"{call.name} cannot be replayed: {err}") from err


def _elementwise(function: Callable[..., torch.Tensor], **options: Any) -> _Function:
    return lambda inputs, parameters, shape: function(inputs[0], **options)


def _linear(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> torch.Tensor:
    return functional.linear(inputs[0], parameters["weight"], parameters.get("bias"))


def _layer_norm(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> torch.Tensor:
    weight = parameters["weight"]
    return functional.layer_norm(inputs[0], weight.shape, weight, parameters.get("bias"))


def _embedding(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> torch.Tensor:
    return functional.embedding(inputs[0], parameters["weight"])


def _convolution(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> torch.Tensor:
    """Convolve with the stride and padding that turn the input's sizes into the output's."""
    weight, given = parameters["weight"], inputs[0]
    axes = weight.dim() - 2
    convolve: Callable[..., torch.Tensor] = (
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
    )[axes - 1]
    for stride, padding in itertools.product((1, 2, 4, 8, 16), range(8)):
        sizes = [
            (length + 2 * padding - kernel) // stride + 1
            for length, kernel in zip(given.shape[-axes:], weight.shape[2:], strict=True)
        ]
        # The usual padding of a size keeps or halves the image.
        if tuple(sizes) == shape[-axes:] and (padding <= max(weight.shape[2:]) // 2):
            groups = given.shape[-axes - 1] // weight.shape[1]
            return convolve(given, weight, parameters.get("bias"), stride, padding, 1, groups)
    raise RebuildError("no stride and padding give the recorded shape")


_FUNCTIONS: dict[str, _Function] = {
    "Linear": _linear,
    "NonDynamicallyQuantizableLinear": _linear,
    "LayerNorm": _layer_norm,
    "Embedding": _embedding,
    "Conv1d": _convolution,
    "Conv2d": _convolution,
    "Conv3d": _convolution,
    "ReLU": _elementwise(functional.relu),
    "GELU": _elementwise(functional.gelu),
    "SiLU": _elementwise(functional.silu),
    "Tanh": _elementwise(torch.tanh),
    "Sigmoid": _elementwise(torch.sigmoid),
    "Softmax": _elementwise(functional.softmax, dim=-1),
    "Identity": _elementwise(torch.clone),
    "Flatten": _elementwise(torch.flatten, start_dim=1),
}
