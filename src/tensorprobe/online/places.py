"""Where in the user's code an operator is called or, in a backward pass, what it belongs to.

forward call ─► its stack, kept under the number of the node that autograd has just made
backward call ─► the node that runs ─► the stack kept under its number
what Python code calls in a backward pass (a recomputation, a Function's backward) ─► its stack
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, TypeAlias

import torch

from tensorprobe.capture.graph_edges import next_sequence_number
from tensorprobe.capture.stacks import StackReader
from tensorprobe.records import Frame

__all__ = ["Places"]

_Stack: TypeAlias = tuple[Frame, ...]

# So many places of forward calls are remembered; of more the oldest are forgotten.
_MOST = 1 << 17
_OWN_FOLDER = str(Path(__file__).parent.parent)
# By these a backward pass is started, and below them is no code but autograd's own.
_STARTERS = tuple(
    str(Path(torch.autograd.__file__).with_name(name)) for name in ("graph.py", "__init__.py")
)


class Places:
    """Finds the places of calls, and remembers those of forward calls."""

    def __init__(self) -> None:
        self._stacks = StackReader()
        # By thread and number: each thread counts its nodes from 0.
        self._known: dict[tuple[int, int], tuple[str, _Stack]] = {}
        self._first_thread = get_ident()

    def find(self, operator: str, tensors: Sequence[torch.Tensor], *, is_backward: bool) -> _Stack:
        """Return where a call is made, innermost first.

        Args:
            operator: its name without the overload.
            tensors: what it is given.
            is_backward: whether a backward pass is on.
        """
        if is_backward and _is_run_by_autograd():
            node: Any = torch._C._current_autograd_node()
            known = None if node is None else self._look_up(node)
            if known is not None:
                return known
            return self._stacks.read()
        stack = self._stacks.read()
        # Without gradients only a Function's forward makes a node, before its first operator.
        if not torch.is_grad_enabled() or any(tensor.requires_grad for tensor in tensors):
            self._remember(operator, stack)
        return stack

    def _remember(self, operator: str, stack: _Stack) -> None:
        # A call that makes no node finds the number of the last one, which is not its own.
        key = get_ident(), next_sequence_number() - 1
        if key in self._known:
            return
        if len(self._known) >= _MOST:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = _plain(operator), stack

    def _look_up(self, node: Any) -> _Stack | None:
        """Return the place of the call that made a node."""
        number = node._sequence_nr()
        threads = dict.fromkeys((get_ident(), self._first_thread))
        found = [one for thread in threads if (one := self._known.get((thread, number)))]
        # Two, if this thread has recomputed something and so made nodes of its own.
        name = _plain(node.name().rstrip("0123456789").removesuffix("Backward"))
        of_that_name = [stack for operator, stack in found if operator == name]
        if of_that_name:
            return of_that_name[0]
        return found[0][1] if len(found) == 1 else None


def _plain(name: str) -> str:
    """Return how an operator and its node are called alike: `mul_` and `Mul`."""
    return name.replace("_", "").lower()


def _is_run_by_autograd() -> bool:
    """Whether it is no Python code but autograd that makes the call that is under way."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename in _STARTERS
