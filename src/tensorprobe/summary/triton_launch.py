"""Launch a Triton kernel at a tenth of what its own launcher costs.

Triton works out at every launch which of its compiled kernels fits the arguments. Ours always fit
the same one, by their dtype and by whether the data are aligned; so each is looked up once, and
then handed to the CUDA driver, or, where that cannot be done, called as Triton's launcher would.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from tensorprobe.system.extensions import load_compiled

__all__ = ["ALIGNED", "LARGEST_COUNT", "Launcher", "TableArguments"]

# What Triton takes as a sign that loads may be wide.
ALIGNED = 16
LARGEST_COUNT = (1 << 31) - 1
"""The largest number of elements that a kernel takes as 32 bits."""
_WARP = 32
# How the compiled launcher calls Triton's types.
_KINDS = {"i32": "i", "u32": "i", "i64": "l", "u64": "l"}

# Gets the programs, the stream, and the kernel's arguments with addresses in place of tensors.
_Way = Callable[..., None]


class TableArguments:
    """The tensors on the device that a kernel is given beside its data."""

    __slots__ = ("addresses", "tensors")

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors
        self.addresses = tuple(tensor.data_ptr() for tensor in tensors)


class Launcher:
    """Launches one kernel.

    Args:
        kernel: the function that `triton.jit` made; its arguments are the data, how many elements
            they have, tables, other numbers, and constants.
        constants: its compile-time arguments, which stand last, in their order.
        options: what else the compilation needs, `num_warps`.
    """

    def __init__(self, kernel: Any, constants: dict[str, int], **options: int) -> None:
        self._kernel = kernel
        self._constants = constants
        self._options = options
        # By device, dtype, alignment and width of the count: the quick ways, the best one last.
        self._known: dict[Hashable, list[_Way]] = {}

    def quick_way(
        self, index: int, dtype: torch.dtype, numbers: int
    ) -> tuple[int, int, int] | None:
        """Return how the driver launches the kernel over fewer than 2^31 aligned elements.

        Args:
            index: of the device.
            dtype: of the elements.
            numbers: how many numbers the kernel takes beside data, a count and two tables.

        Returns:
            The kernel's handle, its threads and its shared memory; None if that is not known, or
            the kernel takes other things.
        """
        ways = self._known.get((index, dtype, True, False))
        way = ways[-1] if ways else None
        # The driver's way takes what it is given; the others may still turn out to be none.
        if not isinstance(way, partial) or way.args[3] != "PiPP" + "i" * numbers:
            return None
        function, threads, shared, _ = way.args
        return function, threads, shared

    def launch(
        self,
        tensor: torch.Tensor,
        stream: int,
        programs: int,
        count: int,
        tables: TableArguments,
        *numbers: int,
    ) -> None:
        """Run the kernel over a tensor's memory.

        Args:
            tensor: the data.
            stream: the raw handle of the current stream of the tensor's device.
            programs: how many instances.
            count: how many elements.
            tables: the tables of the kernel.
            numbers: its other arguments.
        """
        index = tensor.get_device()
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                self.launch(tensor, stream, programs, count, tables, *numbers)
            return
        address = tensor.data_ptr()
        key = (index, tensor.dtype, address % ALIGNED == 0, count > LARGEST_COUNT)
        ways = self._known.get(key)
        if ways is None:
            compiled = self._launch_slowly(tensor, programs, count, tables, numbers)
            self._known[key] = _quick_ways(compiled, tuple(self._constants.values()))
            return
        while ways:
            try:
                ways[-1](programs, stream, address, count, *tables.addresses, *numbers)
            except (AttributeError, TypeError, RuntimeError):
                # This version of Triton, or the driver, wants to be called otherwise.
                ways.pop()
            else:
                return
        self._launch_slowly(tensor, programs, count, tables, numbers)

    def _launch_slowly(
        self,
        tensor: torch.Tensor,
        programs: int,
        count: int,
        tables: TableArguments,
        numbers: tuple[int, ...],
    ) -> Any:
        arguments = (tensor, count, *tables.tensors, *numbers)
        return self._kernel[(programs,)](*arguments, **self._constants, **self._options)


def _quick_ways(compiled: Any, constants: tuple[int, ...]) -> list[_Way]:
    """Return functions that launch a compiled kernel as Triton's own launcher does inside."""
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def by_launcher(programs: int, stream: int, *args: Any) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *args, *constants)

    ways: list[_Way] = [by_launcher]
    scratch = (getattr(run, "global_scratch_size", 1), getattr(run, "profile_scratch_size", 1))
    if hasattr(run, "launch") and scratch == (0, 0):
        launch, is_cooperative, is_dependent = (
            run.launch,
            run.launch_cooperative_grid,
            run.launch_pdl,
        )

        def directly(programs: int, stream: int, *args: Any) -> None:
            launch(
                programs, 1, 1, stream, function, is_cooperative, is_dependent, None, None,
                metadata, None, None, None, *args, *constants,
            )  # fmt: skip

        ways.append(directly)
        if not is_cooperative and not is_dependent and (way := _by_driver(compiled)) is not None:
            ways.append(way)
    return ways


def _by_driver(compiled: Any) -> _Way | None:
    """Return what launches a kernel through the CUDA driver, if all that it needs is known."""
    driver = load_compiled("tensorprobe.summary._launch", "fits", "launch")
    signature = getattr(getattr(compiled, "src", None), "signature", None)
    metadata = compiled.metadata
    if driver is None or not isinstance(signature, dict) or getattr(metadata, "num_ctas", 0) != 1:
        return None
    types = [str(kind) for kind in signature.values() if kind != "constexpr"]
    kinds = "".join("P" if kind.startswith("*") else _KINDS.get(kind, "?") for kind in types)
    if "?" in kinds or not driver.fits(compiled.function, kinds):
        return None
    threads = metadata.num_warps * _WARP
    way: _Way = partial(driver.launch, compiled.function, threads, metadata.shared, kinds)
    return way
