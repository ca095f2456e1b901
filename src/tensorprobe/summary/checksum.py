"""CRC-32 of tensors' bytes, computed where they are and fetched together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorprobe.summary.host import to_host
from tensorprobe.summary.transfer import Batch, DeliveryQueue
from tensorprobe.system.crc32 import crc32

_gpu: Any
try:
    from tensorprobe.summary import triton_checksum as _gpu
except ImportError:
    # No Triton here: the bytes come to the host.
    _gpu = None

__all__ = ["Checked", "ChecksumQueue"]


class Checked:
    """A checksum, or None while it is still on its device."""

    __slots__ = ("value",)

    def __init__(self, value: int | None) -> None:
        self.value = value

    def __str__(self) -> str:
        assert self.value is not None, "fetched before"
        return f"{self.value:08x}"


class ChecksumQueue(DeliveryQueue):
    """Computes checksums now; those on a GPU come later."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[torch.device, Any] = {}
        self._rows: dict[torch.device, list[Checked]] = {}

    def ask(self, tensor: torch.Tensor) -> Checked:
        """Take the checksum of a plain tensor as it is at this moment, whatever its strides."""
        if _gpu is None or not tensor.is_cuda or not tensor.numel():
            return Checked(_checksum_on_host(tensor))
        device = tensor.device
        table = self._tables.get(device)
        if table is None or table.is_full:
            self.send()
            table = self._tables[device] = _gpu.GpuChecksums(device)
        table.measure(tensor)
        checked = Checked(None)
        self._rows.setdefault(device, []).append(checked)
        self._count()
        return checked

    def _take_batches(self) -> list[Batch]:
        batches = []
        for device, rows in self._rows.items():
            transfer, sizes = self._tables[device].send()
            batches.append(Batch(transfer, _deliver(rows, sizes)))
        self._rows = {}
        return batches


def _checksum_on_host(tensor: torch.Tensor) -> int:
    # Memory of a view that negates or conjugates does not hold its numbers.
    if tensor.is_cpu and not tensor.is_neg() and not tensor.is_complex():
        # Most tensors of a step are small, and numpy's way to them takes longer than they do.
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        return crc32(tensor.data_ptr(), tensor.nbytes)
    array = np.ascontiguousarray(to_host(tensor).array)
    return crc32(array.ctypes.data, array.nbytes)


def _deliver(rows: list[Checked], sizes: list[int]) -> Callable[[list[torch.Tensor]], None]:
    def deliver(tables: list[torch.Tensor]) -> None:
        for checked, value in zip(rows, _gpu.read_rows(tables, sizes), strict=True):
            checked.value = value

    return deliver
