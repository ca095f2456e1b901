"""Run one side of a check: a rebuilt call forward and, with given gradients, backward.

arguments ─► forward ─► results, and inputs that were written to ─► backward ─► gradients
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tensorprobe.replay.arguments import map_leaves, tensors_in
from tensorprobe.replay.rebuild import RebuiltCall
from tensorprobe.replay.script_parts.repeat import results_in

__all__ = [
    "Side",
    "random_state",
    "restore_random_state",
    "run_backward",
    "run_forward",
    "share_memory",
]


@dataclass(slots=True)
class Side:
    """What one side gave.

    Attributes:
        outputs: the tensors of the result, in order; plain numbers as tensors without dimensions.
        written: inputs that the call changed and did not return, by their place among the inputs.
        gradients: of each input tensor that wants one, by its place; None where none arrived.
        leaves: the inputs that want gradients, by their place among the input tensors.
        drew_random: whether random numbers were drawn.
        shared: of each output, whether it is memory of an input; empty if nobody asked.
        misplaced: of each output of a view, whether it lies elsewhere than it should.
        seconds: the time in the call itself.
    """

    outputs: list[torch.Tensor]
    written: dict[int, torch.Tensor] = field(default_factory=dict)
    gradients: dict[int, torch.Tensor | None] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)
    drew_random: bool = False
    shared: tuple[bool, ...] = ()
    misplaced: tuple[bool, ...] = ()
    seconds: float = 0.0


def run_forward(
    call: RebuiltCall,
    *,
    seed: int | None,
    device: torch.device,
    with_gradients: bool,
    copies_leaves: bool,
    watches_writes: bool = False,
    returns_statements: bool = True,
    notes_sharing: bool = False,
    around: AbstractContextManager[Any] | None = None,
    timed: AbstractContextManager[Any] | None = None,
) -> Side:
    """Make the call and keep what it returns or writes.

    Args:
        call: the call, its tensors on the device.
        seed: the state of the random numbers before the call; None if it draws none.
        device: where it runs.
        with_gradients: whether autograd watches.
        copies_leaves: the call may write into its inputs, which leaves of a graph do not allow.
        watches_writes: the call writes into inputs without raising their versions.
        returns_statements: what a call without a result leaves in its first argument is its result.
        notes_sharing: whether to note which results are memory of an input.
        around: entered around the call and what belongs to it.
        timed: entered around the call alone.

    Raises:
        Exception: whatever the call raises.
    """
    given = tensors_in((call.args, dict(call.kwargs)))
    leaves = {
        place: tensor
        for place, tensor in enumerate(given)
        if with_gradients and tensor.requires_grad
    }
    before: list[torch.Tensor] = []
    if seed is not None:
        _seed(seed, device)
        before = random_state(device)
    with around or nullcontext(), torch.set_grad_enabled(with_gradients):
        if copies_leaves and leaves:
            swap = {id(leaf): leaf.clone() for leaf in leaves.values()}

            def replaced(value: Any) -> Any:
                return swap.get(id(value), value) if isinstance(value, torch.Tensor) else value

            call = replace(
                call,
                args=map_leaves(call.args, replaced),
                kwargs=map_leaves(dict(call.kwargs), replaced),
            )
            given = tensors_in((call.args, dict(call.kwargs)))
        versions = [tensor._version for tensor in given]
        before_call = [tensor.detach().clone() for tensor in given] if watches_writes else []
        with timed or nullcontext():
            start = _now(device)
            result = call.run()
            seconds = _now(device) - start
    outputs = results_in(result)
    written = {
        place: tensor
        for place, (tensor, version) in enumerate(zip(given, versions, strict=True))
        if tensor._version != version and not any(tensor is output for output in outputs)
    }
    for place, old in enumerate(before_call):
        if not torch.equal(old, given[place].detach()):
            written.setdefault(place, given[place])
    if returns_statements and not outputs and 0 in written:
        # Such as x[0] = 1.
        outputs = [written.pop(0)]
    after = random_state(device) if before else []
    is_same = all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    shared = share_memory(outputs, given) if notes_sharing else ()
    return Side(
        outputs, written, leaves=leaves, drew_random=not is_same, shared=shared, seconds=seconds
    )


def run_backward(
    side: Side,
    gradients: Sequence[torch.Tensor | None],
    device: torch.device,
    timed: AbstractContextManager[Any] | None = None,
) -> None:
    """Send gradients of the outputs back and keep those of the inputs in the side.

    Args:
        side: the forward's side.
        gradients: one for each output; None where none is sent.
        device: where it runs.
        timed: entered around the backward alone.

    Raises:
        Exception: whatever the backward raises.
    """
    roots, sent = [], []
    for output, gradient in zip(side.outputs, gradients, strict=True):
        if gradient is not None and output.requires_grad:
            roots.append(output)
            sent.append(gradient)
    if not roots or not side.leaves:
        return
    with timed or nullcontext():
        start = _now(device)
        found = torch.autograd.grad(roots, list(side.leaves.values()), sent, allow_unused=True)
        side.seconds += _now(device) - start
    side.gradients = dict(zip(side.leaves, found, strict=True))


def share_memory(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[bool, ...]:
    """Return of each result whether it is memory of an input."""
    # What is empty has no memory.
    memories = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    return tuple(
        bool(tensor.numel()) and tensor.untyped_storage().data_ptr() in memories
        for tensor in results
    )


def _seed(seed: int, device: torch.device) -> None:
    """Set the random numbers of the CPU and of one device.

    `torch.manual_seed` also leaves an order, with the stack, for every kind of device that is not
    in use: most of the time that a check of a small call takes.
    """
    torch.default_generator.manual_seed(seed)
    module: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "manual_seed_all"):
        module.manual_seed_all(seed)


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Return the state of the CPU's random numbers and of one device's."""
    states = [torch.get_rng_state()]
    module: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "get_rng_state"):
        states.append(module.get_rng_state(device))
    return states


def restore_random_state(states: Sequence[torch.Tensor], device: torch.device) -> None:
    """Put back what `random_state` returned."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        module: Any = getattr(torch, device.type)
        module.set_rng_state(states[1], device)


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        _synchronize(device)
    return time.perf_counter()


def _synchronize(device: torch.device) -> None:
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "synchronize"):
        module.synchronize(device)
