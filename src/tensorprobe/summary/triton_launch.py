"""Launch a Triton kernel at a quarter of what its own launcher costs.

Triton works out at every launch which of its compiled kernels fits the arguments. Ours always fit
the same one, by their dtype and by whether the data are aligned; so each is looked up once, and
then called as Triton's launcher would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

__all__ = ["Launcher"]

# What Triton takes as a sign that loads may be wide.
_ALIGNED = 16
_LARGEST_INT32 = (1 << 31) - 1


class Launcher:
    """Launches one kernel.

    Args:
        kernel: the function that `triton.jit` made; its first two arguments are the data and how
            many elements they have.
        constants: its compile-time arguments, which stand last, in their order.
        options: what else the compilation needs, `num_warps`.
    """

    def __init__(self, kernel: Any, constants: dict[str, int], **options: int) -> None:
        self._kernel = kernel
        self._constants = constants
        self._options = options
        self._values = tuple(constants.values())
        # By device, dtype, alignment and width of the count: the quick ways, the best one last.
        self._known: dict[Hashable, list[Callable[..., None]]] = {}

    def launch(
        self, tensor: torch.Tensor, stream: int, programs: int, count: int, *args: Any
    ) -> None:
        """Run the kernel over a tensor's memory.

        Args:
            tensor: the data, which the kernel gets by its address.
            stream: the raw handle of the current stream of the tensor's device.
            programs: how many instances.
            count: how many elements.
            args: the other arguments, tensors among them.
        """
        index = tensor.get_device()
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self.launch(tensor, stream, programs, count, *args)
            return
        address = tensor.data_ptr()
        key = (index, tensor.dtype, address % _ALIGNED == 0, count > _LARGEST_INT32)
        ways = self._known.get(key)
        if ways is None:
            compiled = self._launch_slowly(tensor, programs, count, args)
            self._known[key] = _quick_ways(compiled)
            return
        while ways:
            try:
                ways[-1](programs, stream, address, count, *args, *self._values)
            except (AttributeError, TypeError):
                # This version of Triton wants to be called otherwise.
                ways.pop()
            else:
                return
        self._launch_slowly(tensor, programs, count, args)

    def _launch_slowly(
        self, tensor: torch.Tensor, programs: int, count: int, args: tuple[Any, ...]
    ) -> Any:
        return self._kernel[(programs,)](tensor, count, *args, **self._constants, **self._options)


def _quick_ways(compiled: Any) -> list[Callable[..., None]]:
    """Return functions that launch a compiled kernel as Triton's own launcher does inside."""
    run = compiled.run
    ways: list[Callable[..., None]] = [functools.partial(_run, compiled)]
    scratch = (getattr(run, "global_scratch_size", 1), getattr(run, "profile_scratch_size", 1))
    if hasattr(run, "launch") and scratch == (0, 0):
        head = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, None, None)
        tail = (compiled.packed_metadata, None, None, None)
        ways.append(functools.partial(_run_directly, run.launch, head + tail))
    return ways


def _run(compiled: Any, programs: int, stream: int, *args: Any) -> None:
    function, metadata = compiled.function, compiled.packed_metadata
    compiled.run(programs, 1, 1, stream, function, metadata, None, None, None, *args)


def _run_directly(
    launch: Callable[..., None], fixed: tuple[Any, ...], programs: int, stream: int, *args: Any
) -> None:
    launch(programs, 1, 1, stream, *fixed, *args)
