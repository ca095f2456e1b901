"""Tensors that are held until it is known whether their data are wanted.

    draft ─► hold: a reference, or a copy of what the call is going to overwrite
          ─► numbers ─► wanted: the data go to their file ─► let go

A reference costs nothing but the memory that would have been free by then. Whether somebody has
written into it since shows in its version. Which calls write into what they are given is told by
their names, and learnt from those that did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tensorprobe.capture.pending_tensors import Numbers, PendingPart, PendingTensor
from tensorprobe.names import api_or_module_of
from tensorprobe.operations.facts import WRITES_UNSEEN
from tensorprobe.operations.spelling import writes_by_name
from tensorprobe.records import DictValue, ListValue, PeerOpValue

__all__ = ["HeldDraft", "WritingCalls", "held_in"]


class HeldDraft(PendingTensor):
    """A tensor of a record whose data are still within reach."""

    __slots__ = ("_held", "_is_copy", "_is_free", "_seen_version", "name")

    def __init__(self, tensor: torch.Tensor, numbers: Numbers, name: str, *, copies: bool) -> None:
        super().__init__(tensor, *numbers)
        self.name = name
        self._is_copy = False
        # Not the tensor itself: that would keep its graph.
        self._held: torch.Tensor | None = tensor.detach()
        # Its own version: that of the tensor is another one inside of a dispatch mode.
        self._seen_version = 0 if tensor.is_inference() else self._held._version
        # A parameter is there anyway.
        self._is_free = isinstance(tensor, torch.nn.Parameter)
        if copies:
            self.copy()

    @property
    def held(self) -> torch.Tensor | None:
        """The data as they were when the draft was made; None if they are gone."""
        return None if self.is_overwritten else self._held

    @property
    def is_overwritten(self) -> bool:
        """Whether somebody has written into the tensor, of which there is no copy."""
        held = self._held
        if held is None or self._is_copy or held.is_inference():
            return False
        return held._version != self._seen_version

    @property
    def nbytes(self) -> int:
        """How much memory may be there only because it is held."""
        held = self._held
        if held is None or (self._is_free and not self._is_copy):
            return 0
        return held.numel() * held.element_size()

    @property
    def address(self) -> int | None:
        """Where the memory begins that is held by reference."""
        if self._held is None or self._is_copy:
            return None
        return self._held.untyped_storage().data_ptr()

    def copy(self) -> None:
        """Keep a copy, because the tensor is going to be overwritten."""
        if self._held is None or self._is_copy or self.is_overwritten:
            return
        try:
            self._held = self._held.detach().clone()
        except RuntimeError:
            # No memory for it: the reference stays, and shows that it was written to.
            return
        self._is_copy = True

    def hold_whatever_comes(self) -> None:
        """Trust the tensor though it is written to: what was in it before means nothing."""
        self._is_copy = True

    def let_go(self) -> None:
        """Hold the tensor no longer."""
        self._held = None


def held_in(values: Iterable[Any]) -> Iterator[HeldDraft]:
    """Yield the held tensors in drafted values, in order."""
    for value in values:
        if isinstance(value, PendingPart):
            value = value.part
        if isinstance(value, HeldDraft):
            yield value
        elif isinstance(value, ListValue):
            yield from held_in(value.items)
        elif isinstance(value, DictValue):
            yield from held_in(item for _, item in value.items)
        elif isinstance(value, PeerOpValue):
            yield from held_in((value.tensor,))


class WritingCalls:
    """Which calls write into their arguments."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def may_write(self, call: str, tensor: torch.Tensor) -> bool:
        """Whether a call, by its name, may write into a tensor that it is given."""
        key = api_or_module_of(call)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _looks_writing(key)
        if known or key.startswith("Module."):
            return known
        # Running statistics have one dimension.
        return tensor.ndim <= 1 and key.partition(".")[2] in WRITES_UNSEEN

    def learn(self, call: str) -> None:
        """Note that a call has written into an argument."""
        self._known[api_or_module_of(call)] = True


def _looks_writing(key: str) -> bool:
    """Whether a function's name says that it writes: `add_`, `__iadd__`, a collective."""
    first, _, name = key.partition(".")
    if first == "Module":
        return False
    return first == "Distributed" or writes_by_name(name)
