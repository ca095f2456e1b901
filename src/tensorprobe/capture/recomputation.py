"""Tell forward calls that repeat others: activation checkpointing makes them in backward passes.

    a call inside a backward pass ─► its frames, up to that pass: torch.utils.checkpoint, a module?
                                  └► gradients are on, though the pass makes no graph?

The `backward` of somebody's own Function and the hooks of gradients make calls in a backward pass,
too, and these are new. Gradients are off there, unless the pass makes a graph of its own
(`create_graph`). On the other hand they are off in parts of what is repeated: under `no_grad` and
in the `forward` of a Function. So frames tell; only a function, not a module, that somebody repeats
by means of his own is known by its gradients. A module that a hook or a `backward` calls, which is
rarer, counts as repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.utils.checkpoint
from torch.nn.modules import module as torch_module

__all__ = ["Recomputation"]

_CHECKPOINT_FILE = torch.utils.checkpoint.__file__
_MODULE_CALL = (torch_module.__file__, "_call_impl")
_PASSES = ((torch.autograd.__file__, "backward"), (torch.autograd.__file__, "grad"))


class Recomputation:
    """Knows which calls repeat others."""

    def __init__(self) -> None:
        # One entry for each pass that makes a graph now, of whatever thread; a device has its own.
        self._passes_with_graph: list[None] = []

    @contextmanager
    def follow_pass(self, *, creates_graph: bool) -> Iterator[None]:
        """Know of a backward pass, while it runs, whether it makes a graph."""
        if not creates_graph:
            yield
            return
        self._passes_with_graph.append(None)
        try:
            yield
        finally:
            self._passes_with_graph.pop()

    def is_running(self) -> bool:
        """Whether what is called now repeats a call of the forward pass."""
        if torch._C._current_graph_task_id() == -1:
            return False
        if _is_repeating(sys._getframe(1)):
            return True
        return torch.is_grad_enabled() and not self._passes_with_graph


def _is_repeating(frame: FrameType) -> bool:
    """Whether a frame inside a backward pass belongs to what checkpointing, or a module, runs."""
    caller: FrameType | None = frame
    while caller is not None:
        place = (caller.f_code.co_filename, caller.f_code.co_name)
        if place in _PASSES:
            return False
        if place[0] == _CHECKPOINT_FILE or place == _MODULE_CALL:
            return True
        caller = caller.f_back
    return False
