"""Leave torch's fast paths alone: modules that compute otherwise while somebody watches.

In evaluation without gradients, `nn.TransformerEncoderLayer` and its relatives take one fused
kernel, but not while any TorchFunctionMode is on; results then differ in the last bits. So our mode
steps aside while such a module runs. What the kernel computes inside is not seen then, as it would
not be in any case; the module's own inputs and outputs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

if TYPE_CHECKING:
    from tensorprobe.capture.functions import FunctionWatcher

__all__ = ["FastPathGuard"]

_FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def _is_fast(kind: type[nn.Module]) -> bool:
    return issubclass(kind, _FAST)


class FastPathGuard:
    """Turns a FunctionWatcher off around modules with a fast path, while it is open."""

    def __init__(self, watcher: FunctionWatcher) -> None:
        self._watcher = watcher
        self._outermost: nn.Module | None = None
        self._handles: list[Any] = []

    def open(self) -> None:
        """Start to step aside."""
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._before),
            torch_module.register_module_forward_hook(self._after, always_call=True),
        ]

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._outermost is not None or not _is_fast(type(module)) or module.training:
            return
        mode = torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        is_ours = mode is self._watcher
        if is_ours and not torch.is_grad_enabled():
            self._watcher.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._outermost = module

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._outermost is module:
            self._outermost = None
            self._watcher.__enter__()  # type: ignore[no-untyped-call]
