"""CRC-32 of tensors' bytes, computed where they are and fetched together."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tensorprobe.summary.host import to_host

_gpu: Any
try:
    from tensorprobe.summary import triton_checksum as _gpu
except ImportError:
    # No Triton here: the bytes come to the host.
    _gpu = None

__all__ = ["Checked", "ChecksumQueue"]


@dataclass(slots=True)
class Checked:
    """A checksum, or None while it is still on its device."""

    value: int | None

    def __str__(self) -> str:
        assert self.value is not None, "fetched before"
        return f"{self.value:08x}"


class ChecksumQueue:
    """Computes checksums now; those on a GPU come with the next `fetch`."""

    def __init__(self) -> None:
        self._tables: dict[torch.device, Any] = {}
        self._waiting: dict[torch.device, list[Checked]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def ask(self, tensor: torch.Tensor) -> Checked:
        """Take the checksum of a plain tensor as it is at this moment, whatever its strides."""
        if _gpu is None or not tensor.is_cuda or not tensor.numel():
            array = np.ascontiguousarray(to_host(tensor).array)
            return Checked(zlib.crc32(array.reshape(-1).view(np.uint8).data))
        device = tensor.device
        if device not in self._tables:
            self._tables[device] = _gpu.GpuChecksums(device)
        if self._tables[device].is_full:
            self._fetch_device(device)
        self._tables[device].measure(tensor.resolve_conj().resolve_neg())
        checked = Checked(None)
        self._waiting.setdefault(device, []).append(checked)
        return checked

    def fetch(self) -> None:
        """Bring over every checksum that is still on a device."""
        for device in list(self._waiting):
            self._fetch_device(device)

    def _fetch_device(self, device: torch.device) -> None:
        waiting = self._waiting.pop(device, [])
        for checked, value in zip(waiting, self._tables[device].fetch(), strict=True):
            checked.value = value
