"""Launch a Triton kernel at a quarter of what its own launcher costs.

Triton works out at every launch which of its compiled kernels fits the arguments. Ours always fit
the same one, by their dtype and by whether the data are aligned; so each is looked up once, and
then called as Triton's launcher would.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

__all__ = ["Launcher"]

# What Triton takes as a sign that loads may be wide.
ALIGNED = 16


class Launcher:
    """Launches one kernel.

    Args:
        kernel: the function that `triton.jit` made; its first argument is the data.
        constants: its compile-time arguments, which stand last, in their order.
        options: what else the compilation needs, `num_warps`.
    """

    def __init__(self, kernel: Any, constants: dict[str, int], **options: int) -> None:
        self._kernel = kernel
        self._constants = constants
        self._options = options
        self._values = tuple(constants.values())
        self._compiled: dict[Hashable, Any] = {}

    def launch(self, tensor: torch.Tensor, stream: int, programs: int, *args: Any) -> None:
        """Run the kernel over a tensor's memory.

        Args:
            tensor: the data, which the kernel gets by its address.
            stream: the raw handle of the current stream of the tensor's device.
            programs: how many instances.
            args: the other arguments, tensors among them.
        """
        index: int = tensor.device.index
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self.launch(tensor, stream, programs, *args)
            return
        address = tensor.data_ptr()
        key = (index, tensor.dtype, address % ALIGNED == 0)
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = self._launch_slowly(tensor, programs, args)
            return
        try:
            compiled.run(
                programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None,
                None, address, *args, *self._values,
            )  # fmt: skip
        except (AttributeError, TypeError):
            # This version of Triton wants to be called otherwise.
            self._launch_slowly(tensor, programs, args)

    def _launch_slowly(self, tensor: torch.Tensor, programs: int, args: tuple[Any, ...]) -> Any:
        return self._kernel[(programs,)](tensor, *args, **self._constants, **self._options)
