"""What a call was given and what it left, on the host, whatever the run does with it afterwards.

    before the call: its inputs ─► host   behind what the device has still to do, without waiting
    after the call: its results, and what it wrote into ─► host, likewise

Inputs are copied, so that a kernel that spoils them is found out: what it computes is held against
what it was given, and what it left of an input on the host against what that was. A result on the
host is only copied if the run goes on before it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tensorprobe.online.selection import OperatorFacts
from tensorprobe.replay.arguments import map_leaves, tensors_in
from tensorprobe.replay.side import share_memory
from tensorprobe.summary.host import fetch, hold_same_bits

__all__ = ["Call", "Snapshot", "begin_call", "begin_view", "end_call", "find_touched"]

_HOST = torch.device("cpu")


class Snapshot:
    """Some tensors, on their way to the host.

    Args:
        tensors: what to keep; of a tensor that is there twice one is kept.
        copied: the places of those that are copied also if they are on the host, and with them all
            that share their memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], copied: Collection[int]) -> None:
        self._events: list[Any] = []
        memories = {_memory_of(tensors[place]) for place in copied}
        taken: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            if id(tensor) not in taken:
                is_copied = bool(memories) and _memory_of(tensor) in memories
                taken[id(tensor)] = self._take(tensor, is_copied)
        self.tensors = [taken[id(tensor)] for tensor in tensors]
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            self._events.append(torch.cuda.current_stream(device).record_event())

    def _take(self, tensor: torch.Tensor, is_copied: bool) -> torch.Tensor:
        plain = tensor.detach()
        if plain.is_cpu:
            # A tensor of inference mode has no version by which a change could be seen.
            return plain.clone() if is_copied or plain.is_inference() else plain
        if not plain.is_cuda:
            return fetch(plain)
        room = torch.empty_like(plain, device=_HOST, pin_memory=True)
        return room.copy_(plain, non_blocking=True)

    def arrive(self) -> list[torch.Tensor]:
        """Wait for the tensors and return them."""
        while self._events:
            self._events.pop().synchronize()
        return self.tensors


@dataclass(slots=True)
class Call:
    """One call of an operator: what is needed to make it again and to judge it.

    Attributes:
        func: the operator.
        facts: what holds of all its calls.
        number: which of its calls this is, from 1.
        order: which of all calls this is.
        step: in which step.
        is_backward: whether it ran in a backward pass.
        stack: where the user's code made it, or made what it is the backward of.
        device: where it ran.
        args: its arguments, with the tensors of `given`.
        kwargs: those by name.
        given: its input tensors as they were before, in the order of the arguments.
        live: those that the run itself has; empty once they may have changed.
        nbytes: how large all of it is.
        results: what it returned.
        left: what it left of those inputs that it may have written into, by their places.
        touched: the places of inputs that may have changed though it should not write into them.
        shared: of each result, whether it is memory of an input.
        misplaced: of each result of a view, whether it lies elsewhere than it should.
        default_dtype: torch's when it was made.
        is_kept: whether its inputs were taken; of a view they are not.
    """

    func: Any
    facts: OperatorFacts
    number: int
    order: int
    step: int
    is_backward: bool
    stack: tuple[Any, ...]
    device: torch.device
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: Snapshot
    live: list[torch.Tensor]
    nbytes: int
    results: Snapshot | None = None
    left: dict[int, torch.Tensor] = field(default_factory=dict)
    touched: tuple[int, ...] = ()
    shared: tuple[bool, ...] = ()
    misplaced: tuple[bool, ...] = ()
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    is_kept: bool = True
    _left: Snapshot | None = None
    _left_places: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The operator and the number of its call, as files are named: `mm_3`."""
        return f"{self.facts.name}_{self.number}"

    def arrive(self) -> None:
        """Wait for everything that is on its way to the host."""
        self.given.arrive()
        if self.results is not None:
            self.results.arrive()
        if self._left is not None:
            self.left = dict(zip(self._left_places, self._left.arrive(), strict=True))

    def find_left(self, place: int) -> torch.Tensor | None:
        """Return what the call left of one of its inputs."""
        if place in self.left:
            return self.left[place]
        return self.live[place].detach() if self.live else None


def begin_call(
    make: Callable[..., Call],
    facts: OperatorFacts,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Call:
    """Take what a call is given.

    Args:
        make: makes the call of what is found here.
        facts: what holds of all calls of its operator.
        args: its arguments.
        kwargs: those by name.
    """
    live = tensors_in((args, kwargs))
    given = Snapshot(live, range(len(live)))
    swap = dict(zip(map(id, live), given.tensors, strict=True))

    def swapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return swap[id(value)]
        return _HOST if isinstance(value, torch.device) else value

    named = {
        key: False if key == "pin_memory" else map_leaves(value, swapped)
        for key, value in kwargs.items()
    }
    return make(
        facts=facts,
        args=map_leaves(args, swapped),
        kwargs=named,
        given=given,
        live=live,
        nbytes=sum(map(_size_of, live)),
        device=next((tensor.device for tensor in live if not tensor.is_cpu), _HOST),
        is_kept=True,
    )


def begin_view(make: Callable[..., Call], facts: OperatorFacts) -> Call:
    """Return a call whose inputs are not kept, of which only where its result lies is looked at."""
    return make(
        facts=facts,
        args=(),
        kwargs={},
        given=Snapshot((), ()),
        live=[],
        nbytes=0,
        device=_HOST,
        is_kept=False,
    )


def end_call(call: Call, result: Any, *, waits: bool) -> None:
    """Take what a call returned and what it wrote."""
    outputs = tensors_in(result)
    call.nbytes += sum(map(_size_of, outputs))
    if call.device is _HOST:
        call.device = next((tensor.device for tensor in outputs if not tensor.is_cpu), _HOST)
    call.results = Snapshot(outputs, range(len(outputs)) if waits else ())
    call.shared = share_memory(outputs, call.live)
    places = set(_written_places(call.facts, call.args, call.kwargs))
    call.touched = find_touched(call, places)
    if waits:
        places |= {*call.touched, *(range(len(call.live)) if call.facts.writes_unseen else ())}
        call._left_places = sorted(places)
        call._left = Snapshot([call.live[place] for place in call._left_places], range(len(places)))
        call.nbytes += sum(map(_size_of, call._left.tensors))
        call.live = []


def find_touched(call: Call, written: Collection[int] = ()) -> tuple[int, ...]:
    """Return the places of inputs that may have changed though nothing says that they may.

    Args:
        call: the call, just after it was made.
        written: the places of those that it may write into.
    """
    memories = {_memory_of(call.live[place]) for place in written}
    pairs = enumerate(zip(call.given.tensors, call.live, strict=True))
    return tuple(
        place
        for place, (before, now) in pairs
        if _memory_of(now) not in memories and _may_have_changed(call, before, now.detach())
    )


def _may_have_changed(call: Call, before: torch.Tensor, now: torch.Tensor) -> bool:
    if not now.is_cpu:
        # To look would be to wait for the device; of a user's operator it is looked at later.
        return call.facts.writes_unseen
    return not hold_same_bits(before, now)


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _written_places(
    facts: OperatorFacts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[int]:
    """Return the places, among all input tensors, of those that the schema says are written."""
    if not facts.written:
        return []
    places: list[int] = []
    count = 0
    for place, value in enumerate(args):
        tensors = len(tensors_in(value))
        if place in facts.written:
            places += range(count, count + tensors)
        count += tensors
    for key, value in kwargs.items():
        tensors = len(tensors_in(value))
        if key in facts.written_names:
            places += range(count, count + tensors)
        count += tensors
    return places
