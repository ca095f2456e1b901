"""What the installed torch can do, for tests of what an older one cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["has_tangents_under_dispatch_modes", "tells_of_indexing"]


class _Listener(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.has_heard = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.has_heard = True
        return func(*args, **(kwargs or {}))


def tells_of_indexing() -> bool:
    """Whether a mode hears of `tensor[0]`; in torch 2.1 it does not."""
    tensor = torch.zeros(1)
    listener = _Listener()
    with listener:
        tensor[0]
    return listener.has_heard


class _Passing(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def has_tangents_under_dispatch_modes() -> bool:
    """Whether `jvp` of a write in place runs while any dispatch mode is on; not so in torch 2.1."""
    x = torch.ones(1)
    with _Passing():
        try:
            torch.func.jvp(lambda y: (y * 1).mul_(3), (x,), (x,))
        except RuntimeError:
            return False
    return True
