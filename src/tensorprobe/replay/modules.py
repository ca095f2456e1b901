"""Replay a module's call from what a dump at level L0 holds: its inputs and its parameters.

A dump does not hold a module's settings (stride, eps, approximation). Of those that the shapes
allow and that are in use, the one is taken that gives what the trusted run recorded, for both runs;
a replay that does not fit even so is not used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from tensorprobe.dtypes import roundoff_of
from tensorprobe.errors import RebuildError
from tensorprobe.names import ModuleCall, parse_call
from tensorprobe.records import CallRecord, TensorValue, flat_tensors
from tensorprobe.replay.readings import Load, Prepare, Readings
from tensorprobe.replay.refusals import REFUSALS

__all__ = [
    "describe_other_setting",
    "find_setting",
    "replay_module_backward",
    "replay_module_forward",
]

_Parameters = Mapping[str, torch.Tensor]
_Ways = list[Callable[[], Any]]
_Settings = Callable[[Sequence[torch.Tensor], _Parameters, tuple[int, ...]], _Ways]
# What norms are made with in practice; a record of a module does not say.
_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7, 1e-4, 1e-2, 1e-1)
# A result is what a setting gives if it is off by no more than so many roundings of its type.
_FITS = 64


def find_setting(call: CallRecord, load: Load) -> int:
    """Return which setting of a module's class gives most nearly what a trusted run recorded.

    Raises:
        RebuildError: its class is not known here, or no setting gives the recorded shape.
    """
    result = _result(call)
    with torch.no_grad():
        found = _outputs(call, *_given(call, lambda value: _wide(load(value))))
    if len(found) == 1:
        return 0
    recorded = _wide(load(result))

    def distance(index: int) -> float:
        return float((found[index][0] - recorded).nan_to_num(0.0, 0.0, 0.0).norm())

    return min(range(len(found)), key=distance)


def describe_other_setting(call: CallRecord, load: Load, setting: int) -> tuple[str, str] | None:
    """Return which other setting gives what a run recorded, and the trusted run's, in words.

    None if no other setting of the module's class does.

    Args:
        call: the forward call of the run.
        load: returns its tensors.
        setting: the one that gives what the trusted run recorded.

    Raises:
        RebuildError: as `find_setting`.
    """
    result = _result(call)
    with torch.no_grad():
        inputs, parameters = _given(call, lambda value: _wide(load(value)))
        found = _outputs(call, inputs, parameters)
    recorded = _wide(load(result))
    size = float(recorded.norm())
    errors = [float((outputs[0] - recorded).norm()) / size if size else 1.0 for outputs in found]
    best = min(range(len(errors)), key=errors.__getitem__)
    if best == setting or not errors[best] <= _FITS * roundoff_of(result.dtype):
        return None
    ways = _ways(call, inputs, parameters)
    options = [getattr(ways[index], "keywords", {}) for index in (best, setting)]
    names = [key for key in options[0] if options[0][key] is not options[1].get(key)]
    names = [key for key in names if not isinstance(options[0][key], torch.Tensor)]
    names = [key for key in names if options[0][key] != options[1].get(key)]
    if not names:
        return None
    ours, theirs = (", ".join(f"{key} {chosen[key]}" for key in names) for chosen in options)
    return ours, theirs


def replay_module_forward(call: CallRecord, load: Load, prepare: Prepare, setting: int) -> Readings:
    """Make a module's forward call again with one of its class's settings.

    Raises:
        RebuildError: its class is not known here, or its record does not fit it.
    """
    with torch.no_grad():
        inputs, parameters = _given(call, lambda value: prepare(load(value)))
        outputs = _outputs(call, inputs, parameters, setting)[0]
        return {"outputs": list[torch.Tensor | None](outputs)}


def replay_module_backward(
    backward: CallRecord, forward: CallRecord, load: Load, prepare: Prepare, setting: int
) -> Readings:
    """Send the gradient of a module's output back: gradients of its inputs and its parameters.

    Raises:
        RebuildError: as for the forward call, or no gradient was recorded.
    """

    def load_leaf(value: TensorValue) -> torch.Tensor:
        tensor = prepare(load(value)).detach()
        return tensor.requires_grad_() if tensor.is_floating_point() else tensor

    with torch.enable_grad():
        inputs, parameters = _given(forward, load_leaf)
        outputs = _outputs(forward, inputs, parameters, setting)[0]
        starts = [
            (output, prepare(load(value)))
            for output, value in zip(outputs, flat_tensors(backward.inputs), strict=False)
            if value is not None and output.grad_fn is not None
        ]
        if not starts or any(output.shape != gradient.shape for output, gradient in starts):
            raise RebuildError(f"{backward.name}: its gradient does not fit its output")
        leaves = [tensor for tensor in (*inputs, *parameters.values()) if tensor.requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in starts],
            leaves,
            [gradient for _, gradient in starts],
            allow_unused=True,
        )
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


def _result(call: CallRecord) -> TensorValue:
    result = next((value for value in flat_tensors(call.outputs) if value is not None), None)
    if result is None:
        raise RebuildError(f"{call.name}: its output was not recorded")
    return result


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _outputs(
    call: CallRecord,
    inputs: Sequence[torch.Tensor],
    parameters: _Parameters,
    setting: int | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Return what a module computes with every setting that its shapes allow, or with one."""
    shape = _result(call).shape
    try:
        ways = _ways(call, inputs, parameters)
        chosen = ways if setting is None else ways[setting : setting + 1]
        found = [_flatten(way()) for way in chosen]
    except REFUSALS as err:
        raise RebuildError(f"{call.name} cannot be replayed: {err}") from err
    if not found or any(tuple(outputs[0].shape) != shape for outputs in found):
        raise RebuildError(f"{call.name}: no setting of its class gives the recorded shape")
    return found


def _ways(call: CallRecord, inputs: Sequence[torch.Tensor], parameters: _Parameters) -> _Ways:
    name = parse_call(call.name)
    settings = _SETTINGS.get(name.class_name) if isinstance(name, ModuleCall) else None
    if settings is None:
        raise RebuildError(f"{call.name}: what its class computes is not known here")
    return settings(inputs, parameters, _result(call).shape)


def _flatten(result: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(tensor for item in result for tensor in _flatten(item))


def _elementwise(function: Callable[..., torch.Tensor], *options: Mapping[str, Any]) -> _Settings:
    """Return what a function of one tensor gives with each of these settings, or with none."""
    return lambda inputs, parameters, shape: [
        partial(function, inputs[0], **setting) for setting in options or ({},)
    ]


def _linear(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    return [partial(functional.linear, inputs[0], parameters["weight"], parameters.get("bias"))]


def _layer_norm(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    weight = parameters["weight"]
    return [
        partial(
            functional.layer_norm, inputs[0], weight.shape, weight, parameters.get("bias"), eps=eps
        )
        for eps in _EPSILONS
    ]


def _group_norm(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    channels = inputs[0].shape[1]
    return [
        partial(
            functional.group_norm,
            inputs[0],
            num_groups=groups,
            weight=parameters.get("weight"),
            bias=parameters.get("bias"),
            eps=eps,
        )
        for groups in range(1, channels + 1)
        if channels % groups == 0
        for eps in _EPSILONS
    ]


def _batch_norm(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    """Normalise by the batch itself: what was gathered before is not recorded."""
    return [
        partial(
            functional.batch_norm,
            inputs[0],
            None,
            None,
            parameters.get("weight"),
            parameters.get("bias"),
            True,
            eps=eps,
        )
        for eps in _EPSILONS
    ]


def _embedding(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    return [partial(functional.embedding, inputs[0], parameters["weight"])]


def _slope(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    return [partial(functional.prelu, inputs[0], parameters["weight"])]


def _convolution(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    """Convolve with every stride, padding and dilation that gives the recorded sizes."""
    weight, given = parameters["weight"], inputs[0]
    axes = weight.dim() - 2
    convolve: Callable[..., torch.Tensor] = (
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
    )[axes - 1]
    groups = given.shape[-axes - 1] // weight.shape[1]
    return [
        partial(
            convolve,
            given,
            weight,
            parameters.get("bias"),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        for stride, padding, dilation in _windows(weight.shape[2:])
        if tuple(
            (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel in zip(given.shape[-axes:], weight.shape[2:], strict=True)
        )
        == shape[-axes:]
    ]


def _transposed_convolution(
    inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
) -> _Ways:
    """Convolve the other way, likewise; what the sizes leave open is padded at the end."""
    weight, given = parameters["weight"], inputs[0]
    axes = weight.dim() - 2
    convolve: Callable[..., torch.Tensor] = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )[axes - 1]
    groups = shape[-axes - 1] // weight.shape[1]
    found: _Ways = []
    for stride, padding, dilation in _windows(weight.shape[2:]):
        rests = [
            wanted - ((length - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
            for wanted, length, kernel in zip(
                shape[-axes:], given.shape[-axes:], weight.shape[2:], strict=True
            )
        ]
        if all(0 <= rest < max(stride, dilation) for rest in rests):
            bias = parameters.get("bias")
            found.append(
                partial(convolve, given, weight, bias, stride, padding, rests, groups, dilation)
            )
    return found


def _recurrent(function: Callable[..., Any], states: int) -> _Settings:
    """Run a recurrent network with the batch first or second, from the state that it was given."""

    def settings(
        inputs: Sequence[torch.Tensor], parameters: _Parameters, shape: tuple[int, ...]
    ) -> _Ways:
        given, weights = inputs[0], list(parameters.values())
        layers = sum("weight_ih" in key and "reverse" not in key for key in parameters)
        ways = 2 if any("reverse" in key for key in parameters) else 1
        hidden = parameters["weight_hh_l0"].shape[1]
        has_bias = "bias_ih_l0" in parameters

        def run(batch_first: bool) -> Any:
            batch = given.shape[0 if batch_first else 1]
            start = list(inputs[1:]) or [given.new_zeros(layers * ways, batch, hidden)] * states
            state = start[0] if states == 1 else start
            options = (has_bias, layers, 0.0, False, ways == 2, batch_first)
            return function(given, state, weights, *options)

        return [partial(run, True), partial(run, False)]

    return settings


def _windows(kernel: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield strides, paddings and dilations that are in use, the simplest first."""
    for dilation, stride in itertools.product((1, 2, 3, 4, 8, 16), (1, 2, 3, 4, 8, 16)):
        for padding in range(dilation * (max(kernel) - 1) + 1):
            yield stride, padding, dilation


_SETTINGS: dict[str, _Settings] = {
    "Linear": _linear,
    "NonDynamicallyQuantizableLinear": _linear,
    "LayerNorm": _layer_norm,
    "Embedding": _embedding,
    "Conv1d": _convolution,
    "Conv2d": _convolution,
    "Conv3d": _convolution,
    "ConvTranspose1d": _transposed_convolution,
    "ConvTranspose2d": _transposed_convolution,
    "ConvTranspose3d": _transposed_convolution,
    "GroupNorm": _group_norm,
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "BatchNorm3d": _batch_norm,
    "LSTM": _recurrent(torch.lstm, 2),
    "GRU": _recurrent(torch.gru, 1),
    "PReLU": _slope,
    "ReLU": _elementwise(functional.relu),
    "ReLU6": _elementwise(functional.relu6),
    "LeakyReLU": _elementwise(
        functional.leaky_relu, *({"negative_slope": slope} for slope in (0.01, 0.1, 0.2, 0.3))
    ),
    "ELU": _elementwise(functional.elu),
    "Softplus": _elementwise(functional.softplus),
    "Mish": _elementwise(functional.mish),
    "Hardswish": _elementwise(functional.hardswish),
    "Hardsigmoid": _elementwise(functional.hardsigmoid),
    "GELU": _elementwise(functional.gelu, {}, {"approximate": "tanh"}),
    "SiLU": _elementwise(functional.silu),
    "Tanh": _elementwise(torch.tanh),
    "Sigmoid": _elementwise(torch.sigmoid),
    "Softmax": _elementwise(functional.softmax, {"dim": -1}, {"dim": 1}),
    "LogSoftmax": _elementwise(functional.log_softmax, {"dim": -1}, {"dim": 1}),
    "Identity": _elementwise(torch.clone),
    "Flatten": _elementwise(torch.flatten, {"start_dim": 1}),
}
