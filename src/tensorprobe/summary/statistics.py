"""Max, min, mean and norm of tensors, measured where they are and fetched together.

A tensor on the host is measured at once, in one pass. For any other device the four numbers are
left on it; `fetch` brings all of them over with one wait per device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tensorprobe.metrics.kernel import load_kernel
from tensorprobe.metrics.statistics import measure_array
from tensorprobe.records import Number
from tensorprobe.summary.host import to_host

_gpu: Any
try:
    from tensorprobe.summary import triton_statistics as _gpu
except ImportError:
    # No Triton here: torch's own operations measure, in a few passes.
    _gpu = None

__all__ = ["Four", "Measured", "StatisticsQueue"]

Four = tuple[Number | None, Number | None, Number | None, Number | None]
_NOTHING: Four = (None, None, None, None)
# More elements than these are shared between threads.
_SMALL = 1 << 20
_KERNEL_TYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip
_KERNEL_NAMES = {getattr(torch, name): name for name in _KERNEL_TYPES}


@dataclass(slots=True)
class Measured:
    """The four numbers of a tensor, or None while they are still on its device."""

    numbers: Four | None


class StatisticsQueue:
    """Measures tensors now; the numbers of those on a device come with the next `fetch`."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[tuple[Measured, torch.Tensor, bool]]] = {}
        self._tables: dict[torch.device, Any] = {}
        self._rows: dict[torch.device, list[Measured]] = {}

    def __len__(self) -> int:
        waiting = sum(map(len, self._waiting.values()))
        return waiting + sum(map(len, self._rows.values()))

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Measure a plain tensor as it is at this moment."""
        if not tensor.numel():
            return Measured(_NOTHING)
        device = tensor.device
        if device.type == "cpu":
            return Measured(_measure_on_host(tensor))
        measured = Measured(None)
        if _gpu is not None and _gpu.is_supported(tensor):
            table = self._tables.get(device)
            if table is None:
                table = self._tables[device] = _gpu.GpuTable(device)
            elif len(table) >= _gpu.ROWS:
                self._fetch_table(device)
            table.measure(tensor)
            self._rows.setdefault(device, []).append(measured)
            return measured
        row = (measured, _measure_on_device(tensor), tensor.dtype is torch.bool)
        self._waiting.setdefault(device, []).append(row)
        return measured

    def fetch(self) -> None:
        """Bring over everything that is still on a device, with one wait for each."""
        for device in list(self._rows):
            self._fetch_table(device)
        for rows in self._waiting.values():
            table = torch.stack([row for _, row, _ in rows]).cpu().tolist()
            for (measured, _, is_bool), (high, low, mean, norm) in zip(rows, table, strict=True):
                measured.numbers = (
                    (bool(high), bool(low), None, None) if is_bool else (high, low, mean, norm)
                )
        self._waiting.clear()

    def _fetch_table(self, device: torch.device) -> None:
        rows = self._rows.pop(device, [])
        if rows:
            for measured, numbers in zip(rows, self._tables[device].fetch(), strict=True):
                measured.numbers = numbers


def _measure_on_host(tensor: torch.Tensor) -> Four:
    if not tensor.ndim:
        return _single(tensor)
    return _measure_small(tensor) or _measure_any(tensor)


def _measure_small(tensor: torch.Tensor) -> Four | None:
    """Measure the usual tensor, small and contiguous, by one call of the kernel; None for others.

    Most tensors of a step are small, and then the way to the kernel is what costs.
    """
    name = _KERNEL_NAMES.get(tensor.dtype)
    kernel = load_kernel()
    count = tensor.numel()
    if kernel is None or name is None or count > _SMALL or not tensor.is_contiguous():
        return None
    nans, above, below, _, high, low, sums, squares = kernel.measure(tensor.data_ptr(), count, name)
    # Squares that float64 cannot hold stand in units of their own.
    if nans or above or below or squares[0] or squares[2] or high is None or low is None:
        return None
    if name == "bool":
        return bool(high), bool(low), None, None
    return high, low, sums[1] / count, math.sqrt(squares[1])


def _measure_any(tensor: torch.Tensor) -> Four:
    data = to_host(tensor)
    found = measure_array(data.array, data.dtype)
    if data.dtype.kind == "bool":
        # The older tools give no mean of truths.
        return found.max, found.min, None, None
    return found.max, found.min, found.mean, found.norm


def _single(tensor: torch.Tensor) -> Four:
    """A tensor without dimensions is its own maximum, minimum, mean and norm."""
    value = tensor.detach().item()
    if isinstance(value, bool):
        return value, value, None, None
    if isinstance(value, complex):
        value = abs(value)
    return value, value, value, value


def _measure_on_device(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.detach()
    if values.is_complex():
        values = values.abs()
    wide = (
        values.double()
        if values.dtype is torch.float64 or not values.is_floating_point()
        else values.float()
    )
    low, high = torch.aminmax(wide)
    if not values.ndim:
        return wide.double().expand(4)
    return torch.stack((high, low, wide.mean(), torch.linalg.vector_norm(wide))).double()
