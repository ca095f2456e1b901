"""Make one call on a device as it was recorded, or on the CPU in wider dtypes; and its gradients.

saved tensors ─► Given: arguments ─► call ─► results, written inputs ─► gradients that were saved
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorprobe.replay.arguments import tensors_in

__all__ = [
    "Call",
    "Given",
    "Run",
    "load_tensors",
    "make_candidate",
    "make_reference",
    "results_in",
    "results_of_node",
]


@dataclass(frozen=True, kw_only=True)
class Call:
    """How the call is made.

    Attributes:
        make: makes it, from what loads a tensor, what changes a dtype, and the device.
        wider: what takes the place of a dtype in the reference.
        default: torch's default dtype there.
        half: the half that the result was recorded in, if it was one. Should the arguments alone
            give float32, the call was made under autocast to that.
        wants_gradients: whether gradients are sent back.
        gradients: how many were saved, also those that are None.
        sends_ones: whether ones are sent where none was saved.
        copies: whether it is given copies of what wants gradients, because it writes into them.
        written: the inputs that it leaves a result in, by their places.
        sorts_along: the dimension of what it returns in any order.
    """

    make: Callable[[Any, Any, Any], Any]
    wider: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    default: torch.dtype | None = None
    half: torch.dtype | None = None
    wants_gradients: bool = False
    gradients: int = 0
    sends_ones: bool = False
    copies: bool = False
    written: tuple[int, ...] = ()
    sorts_along: int | None = None


@dataclass(frozen=True)
class Run:
    """What the call gave.

    Attributes:
        outputs: the tensors of its result.
        named: these, written inputs and gradients of inputs by their places.
        sent: the outputs that a gradient was sent back to, with it.
        autocast: the dtype of the autocast that it was made under, if it was.
    """

    outputs: Sequence[torch.Tensor]
    named: Mapping[str, torch.Tensor]
    sent: Sequence[tuple[torch.Tensor, torch.Tensor]]
    autocast: torch.dtype | None


def load_tensors() -> dict[str, torch.Tensor]:
    """Return the tensors that were saved with the script."""
    path = Path(__file__).with_name("tensors.pt")
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


class Given:
    """Makes the arguments of one run and keeps them in their order.

    Args:
        saved: the saved tensors, by their names.
        call: the call.
        device: where it is made.
        is_reference: whether in wider dtypes.
        autocast: the dtype that the reference's float32 is rounded to first.
    """

    def __init__(
        self,
        saved: Mapping[str, torch.Tensor],
        call: Call,
        device: torch.device,
        *,
        is_reference: bool,
        autocast: torch.dtype | None,
    ) -> None:
        self._saved, self._call, self._device = saved, call, device
        self._is_reference, self._autocast = is_reference, autocast
        self.tensors: list[torch.Tensor] = []
        self.leaves: dict[int, torch.Tensor] = {}

    def __call__(self, name: str, wants_gradient: bool = False) -> torch.Tensor:
        """Return a tensor that was saved; a leaf, or a copy of one, where gradients are wanted."""
        tensor = self._saved[name]
        if self._is_reference:
            if self._autocast is not None and tensor.dtype == torch.float32:
                tensor = tensor.to(self._autocast)
            tensor = tensor.to(self.dtype(tensor.dtype))
        tensor = tensor.to(self._device, copy=True)
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if wants_gradient and self._call.wants_gradients and is_number:
            leaf = self.leaves[len(self.tensors)] = tensor.requires_grad_()
            tensor = leaf.clone() if self._call.copies else leaf
        self.tensors.append(tensor)
        return tensor

    def dtype(self, recorded: torch.dtype) -> torch.dtype:
        """Return the dtype that takes a recorded one's place."""
        return self._call.wider.get(recorded, recorded) if self._is_reference else recorded

    def if_wider(self, value: float) -> float | None:
        """Return what the reference is told and a call in its own dtype knows by itself."""
        return value if self._is_reference else None


def results_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, in order; plain numbers are tensors if there are no others.

    >>> [tensor.item() for tensor in results_in((torch.tensor(1), {"a": torch.tensor(2)}))]
    [1, 2]
    """
    found = tensors_in(value)
    numbers = value if isinstance(value, (tuple, list)) else (value,)
    if found or not all(isinstance(number, (bool, int, float, complex)) for number in numbers):
        return found
    # As wide as Python's own numbers.
    return [
        torch.tensor(number, dtype=torch.float64 if type(number) is float else None)
        for number in numbers
    ]


def results_of_node(
    outputs: Sequence[torch.Tensor], sent: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> list[torch.Tensor | None]:
    """Return what the last node of the graph sends on; nothing if it cannot be called by itself.

    Args:
        outputs: the results of a call.
        sent: those that a gradient is sent back to, with it.
    """
    node: Any = sent[0][0].grad_fn if sent else None
    if node is None or any(output.grad_fn is not node for output, _ in sent):
        return []
    width = 1 + max(output.output_nr for output in outputs if output.grad_fn is node)
    arriving: list[torch.Tensor | None] = [None] * width
    for output, gradient in sent:
        arriving[output.output_nr] = gradient
    try:
        results = node(*arriving)
    except (RuntimeError, TypeError):
        return []
    items = results if isinstance(results, tuple) else (results,)
    return [None if item is None else item.detach() for item in items]


def make_candidate(
    call: Call, saved: Mapping[str, torch.Tensor], device: torch.device, seed: int = 0
) -> Run:
    """Make the call on a device as it was recorded; under autocast if the result shows that."""
    run = _make(call, saved, device, seed, is_reference=False, autocast=None)
    is_wider = bool(run.outputs) and run.outputs[0].dtype == torch.float32
    if call.half is None or not is_wider:
        return run
    return _make(call, saved, device, seed, is_reference=False, autocast=call.half)


def make_reference(
    call: Call,
    saved: Mapping[str, torch.Tensor],
    seed: int = 0,
    *,
    autocast: torch.dtype | None = None,
) -> Run:
    """Make the call on the CPU in wider dtypes, from what autocast would have given it."""
    return _make(call, saved, torch.device("cpu"), seed, is_reference=True, autocast=autocast)


def _make(
    call: Call,
    saved: Mapping[str, torch.Tensor],
    device: torch.device,
    seed: int,
    *,
    is_reference: bool,
    autocast: torch.dtype | None,
) -> Run:
    given = Given(saved, call, device, is_reference=is_reference, autocast=autocast)
    around: Any = nullcontext()
    if autocast is not None and not is_reference:
        around = torch.autocast(device.type, dtype=autocast)
    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    try:
        if is_reference and call.default is not None:
            torch.set_default_dtype(call.default)
        with around, torch.set_grad_enabled(call.wants_gradients):
            result = call.make(given, given.dtype, device)
    finally:
        torch.set_default_dtype(before)
    # A statement such as x[0] = 1 leaves its result in its first argument.
    outputs = results_in(result) or given.tensors[:1]
    sent = _pair_gradients(call, saved, outputs)
    named = {
        f"forward.output.{place}": tensor for place, tensor in enumerate(_sorted(call, outputs))
    }
    named.update({f"forward.input.{place}": given.tensors[place] for place in call.written})
    if sent and given.leaves:
        found = torch.autograd.grad(
            [output for output, _ in sent],
            list(given.leaves.values()),
            [gradient for _, gradient in sent],
            allow_unused=True,
            retain_graph=True,
        )
        named.update(
            (f"backward.output.{place}", gradient)
            for place, gradient in zip(given.leaves, found, strict=True)
            if gradient is not None
        )
    return Run(outputs, named, sent, autocast)


def _sorted(call: Call, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return values and their places in the order of the values, if they came in any."""
    if call.sorts_along is None:
        return outputs
    order = outputs[0].argsort(dim=call.sorts_along, stable=True)
    return [output.gather(call.sorts_along, order) for output in outputs]


def _pair_gradients(
    call: Call, saved: Mapping[str, torch.Tensor], outputs: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the outputs with the gradients that are sent back to them."""
    starts = list(outputs)
    if call.gradients and call.gradients != len(starts):
        # Some tools record those alone.
        starts = [output for output in starts if output.grad_fn is not None]
    found = []
    for place, output in enumerate(starts):
        gradient = saved.get(f"gradient.{place}")
        if gradient is None and call.sends_ones:
            gradient = torch.ones_like(output)
        if output.requires_grad and gradient is not None and gradient.shape == output.shape:
            found.append((output, gradient.to(output.device, output.dtype)))
    return found
