"""Let go of tensors before torch exchanges what is inside them.

`torch.utils.swap_tensors` gives a tensor the data, the class and the autograd graph of another one,
and refuses where anybody has a weak reference to either. `module.double()`, `load_state_dict` and
their like do it to tensors of other classes, such as DTensor, and to all parameters after
`torch.__future__.set_swap_module_params_on_conversion(True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils

from tensorprobe.capture.code_patch import CodePatch

if TYPE_CHECKING:
    from tensorprobe.capture.modules import ModuleWatcher
    from tensorprobe.capture.recorder import Recorder
    from tensorprobe.capture.single_module import ModuleDump

__all__ = ["SwapGuard"]


class SwapGuard:
    """Has everybody let go of a tensor that is about to be swapped, while it is open.

    Args:
        recorder: what knows tensors of calls.
        module_dump: what hooks parameters.
    """

    def __init__(self, recorder: Recorder, module_dump: ModuleDump) -> None:
        self._recorders = [recorder]
        self._module_dump = module_dump
        self._modules: ModuleWatcher | None = None
        self._patch: CodePatch | None = None

    def open(
        self, modules: ModuleWatcher | None = None, *, recorder: Recorder | None = None
    ) -> None:
        """Start to listen, unless that has been done; these let go of tensors from now on, too."""
        self._modules = modules or self._modules
        if recorder is not None and recorder not in self._recorders:
            self._recorders.append(recorder)
        # torch has it from 2.3 on.
        swap = getattr(torch.utils, "swap_tensors", None)
        if self._patch is None and isinstance(swap, FunctionType):
            self._patch = CodePatch(swap, self._swap)

    def close(self) -> None:
        """Let go of all tensors, and leave torch's function alone again."""
        self._forget_tensors()
        self._modules = None
        if self._patch is not None:
            self._patch.end()
            self._patch = None

    def _swap(self, swap: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with torch._C.DisableTorchFunction():
                for value in (*args, *kwargs.values()):
                    if isinstance(value, torch.Tensor):
                        self._let_go(value)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._recorders[0].fail("what comes after swap_tensors", err)
        return swap(*args, **kwargs)

    def _let_go(self, tensor: torch.Tensor) -> None:
        self._forget_tensors()
        self._module_dump.let_go(tensor)
        if self._modules is not None:
            self._modules.let_go(tensor)

    def _forget_tensors(self) -> None:
        for recorder in self._recorders:
            recorder.forget_tensors()
