"""Max, min, mean and norm of tensors, measured where they are and fetched together.

A tensor on the host is measured at once, in one pass. For any other device the four numbers are
left on it; `fetch` brings all of them over with one wait per device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensorprobe.metrics.statistics import measure_array
from tensorprobe.records import Number
from tensorprobe.summary.host import to_host

__all__ = ["Four", "Measured", "StatisticsQueue"]

Four = tuple[Number | None, Number | None, Number | None, Number | None]
_NOTHING: Four = (None, None, None, None)


@dataclass(slots=True)
class Measured:
    """The four numbers of a tensor, or None while they are still on its device."""

    numbers: Four | None


class StatisticsQueue:
    """Measures tensors now; the numbers of those on a device come with the next `fetch`."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[tuple[Measured, torch.Tensor, bool]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Measure a plain tensor as it is at this moment."""
        if not tensor.numel():
            return Measured(_NOTHING)
        if tensor.device.type == "cpu":
            return Measured(_measure_on_host(tensor))
        measured = Measured(None)
        row = (measured, _measure_on_device(tensor), tensor.dtype is torch.bool)
        self._waiting.setdefault(tensor.device, []).append(row)
        return measured

    def fetch(self) -> None:
        """Bring over everything that is still on a device, with one wait for each."""
        for rows in self._waiting.values():
            table = torch.stack([row for _, row, _ in rows]).cpu().tolist()
            for (measured, _, is_bool), (high, low, mean, norm) in zip(rows, table, strict=True):
                measured.numbers = (
                    (bool(high), bool(low), None, None) if is_bool else (high, low, mean, norm)
                )
        self._waiting.clear()


def _measure_on_host(tensor: torch.Tensor) -> Four:
    if not tensor.ndim:
        return _single(tensor)
    data = to_host(tensor)
    found = measure_array(data.array, data.dtype)
    if data.dtype.kind == "bool":
        # The older tools give no mean of truths.
        return found.max, found.min, None, None
    return found.max, found.min, found.mean, found.norm


def _single(tensor: torch.Tensor) -> Four:
    """A tensor without dimensions is its own maximum, minimum, mean and norm."""
    value = tensor.detach().item()
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
