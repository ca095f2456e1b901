"""What the installed torch can do, for tests of what an older one cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["tells_of_indexing"]


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
