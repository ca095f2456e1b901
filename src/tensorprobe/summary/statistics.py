"""Max, min, mean and norm of tensors, measured where they are and fetched together.

A tensor on the host is measured at once, in one pass. For any other device the four numbers are
left on it and sent over in batches, which nobody waits for before the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorprobe.metrics.kernel import load_kernel
from tensorprobe.metrics.statistics import ArrayStatistics, measure_array
from tensorprobe.records import Number
from tensorprobe.summary.host import to_host
from tensorprobe.summary.layout import merged_layout
from tensorprobe.summary.transfer import Batch, DeliveryQueue, Transfer

_gpu: Any
try:
    from tensorprobe.summary import triton_statistics as _gpu
except ImportError:
    # No Triton here: torch's own operations measure, in a few passes.
    _gpu = None

__all__ = [
    "KERNEL_TYPES",
    "MOST_MEASURED_AT_ONCE",
    "Four",
    "Measured",
    "StatisticsQueue",
    "host_kernel",
    "numbers_of",
    "plan_on_host",
    "release_tables",
]

Four = tuple[Number | None, Number | None, Number | None, Number | None]
_NOTHING: Four = (None, None, None, None)
# More elements than these are shared between threads.
MOST_MEASURED_AT_ONCE = 1 << 20
_KERNEL_TYPE_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip
KERNEL_TYPES = {getattr(torch, name): name for name in _KERNEL_TYPE_NAMES}


# Tables of queues that are at rest, by the GPU's index: a step waits while one is made.
_spare: dict[int, Any] = {}


def release_tables() -> None:
    """Give the memory of tables back that no queue uses."""
    _spare.clear()


class Measured:
    """The four numbers of a tensor, or None while they are still on its device."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Four | None) -> None:
        self.numbers = numbers


class StatisticsQueue(DeliveryQueue):
    """Measures tensors now; the numbers of those on a device come later."""

    def __init__(self) -> None:
        super().__init__()
        # By the GPU's index.
        self._tables: dict[int, Any] = {}
        # Asks the table that was used last.
        self._ask_quickly: Callable[[torch.Tensor], Measured | None] | None = None
        # The same, for tensors of which nobody knows whether they are plain.
        self._ask_unseen: Callable[[torch.Tensor], Measured | None] | None = None
        self._others: dict[torch.device, list[tuple[Measured, torch.Tensor, bool]]] = {}
        self._streams: dict[torch.device, set[int]] = {}

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Measure a plain tensor as it is at this moment."""
        if self._ask_quickly is not None and (waiting := self._ask_quickly(tensor)) is not None:
            self._count()
            return waiting
        count = tensor.numel()
        if not count:
            return Measured(_NOTHING)
        if tensor.is_cpu:
            return Measured(_measure_on_host(tensor))
        if _gpu is not None and tensor.is_cuda and _gpu.can_measure(tensor):
            index = tensor.get_device()
            table = self._tables.get(index)
            if table is None or table.is_full:
                self.send()
                table = _spare.pop(index, None) or _gpu.GpuTable(tensor.device, Measured)
                self._tables[index] = table
            measured: Measured = table.measure(tensor, count)
            self._ask_quickly = table.ask
            self._ask_unseen = table.ask if table.asks_tensors_themselves else None
        else:
            device = tensor.device
            measured = Measured(None)
            row = (measured, _measure_on_device(tensor), tensor.dtype is torch.bool)
            self._others.setdefault(device, []).append(row)
            if tensor.is_cuda:
                stream = torch.cuda.current_stream(device).cuda_stream
                self._streams.setdefault(device, set()).add(stream)
        self._count()
        return measured

    def rest(self) -> None:
        """Leave tables with room to the next queue; everything that was asked for is delivered."""
        tables, self._tables = self._tables, {}
        self._ask_quickly = self._ask_unseen = None
        _spare.update((index, table) for index, table in tables.items() if not table.is_full)

    def _take_batches(self) -> list[Batch]:
        batches: list[Batch] = []
        for table in self._tables.values():
            sent = table.send()
            if sent is not None:
                transfer, rows, counts = sent
                batches.append(Batch(transfer, _deliver_rows(rows, counts)))
        for device, others in self._others.items():
            transfer = Transfer(device, self._streams.pop(device, ()), _stacked(others))
            batches.append(Batch(transfer, _deliver_others(others)))
        self._others = {}
        return batches


def _stacked(
    rows: list[tuple[Measured, torch.Tensor, bool]],
) -> Callable[[], Sequence[torch.Tensor]]:
    return lambda: [torch.stack([row for _, row, _ in rows])]


def _deliver_rows(rows: list[Measured], counts: list[int]) -> Callable[[list[torch.Tensor]], None]:
    def deliver(tables: list[torch.Tensor]) -> None:
        for measured, numbers in zip(rows, _gpu.read_rows(tables, counts), strict=True):
            measured.numbers = numbers

    return deliver


def _deliver_others(
    rows: list[tuple[Measured, torch.Tensor, bool]],
) -> Callable[[list[torch.Tensor]], None]:
    def deliver(tables: list[torch.Tensor]) -> None:
        for (measured, _, is_bool), numbers in zip(rows, tables[0].tolist(), strict=True):
            high, low, mean, norm = numbers
            measured.numbers = (
                (bool(high), bool(low), None, None) if is_bool else (high, low, mean, norm)
            )

    return deliver


@functools.cache
def host_kernel() -> Any:
    """Return the compiled kernel that measures on the host, or None."""
    # Looking for it asks the environment, each time.
    return load_kernel()


def _measure_on_host(tensor: torch.Tensor) -> Four:
    if not tensor.ndim:
        return _single(tensor)
    return _measure_small(tensor) or _measure_any(tensor)


def _measure_small(tensor: torch.Tensor) -> Four | None:
    """Measure the usual tensor, a small one, by one call of the kernel; None for others.

    Most tensors of a step are small, and then the way to the kernel is what costs.
    """
    kernel = host_kernel()
    plan = None if kernel is None else plan_on_host(tensor)
    if plan is None:
        return None
    address, count, name, _ = plan
    return numbers_of(kernel.measure(address, count, name), count, name)


def plan_on_host(
    tensor: torch.Tensor, ordered: int | None = None
) -> tuple[int, int, str, object] | None:
    """Return what the kernel measures a tensor by: address, count and type of its elements.

    The fourth is what the memory belongs to. None if the kernel alone is not enough.

    Args:
        tensor: a plain tensor.
        ordered: where its elements lie in C order, if that is known.
    """
    name = KERNEL_TYPES.get(tensor.dtype)
    count = tensor.numel()
    if (
        name is None
        or not tensor.is_cpu
        or not tensor.ndim
        or not 0 < count <= MOST_MEASURED_AT_ONCE
    ):
        return None
    # Memory of a view that negates does not hold its numbers.
    if tensor.is_neg():
        return None
    if not tensor.is_contiguous():
        layout = merged_layout(tensor)
        # Numbers have no order: a permuted tensor is read as it lies in memory.
        if len(layout) != 1 or layout[0][0] != 1:
            if ordered is not None:
                return ordered, count, name, None
            tensor = tensor.detach().contiguous()
    return tensor.data_ptr(), count, name, tensor


def numbers_of(found: Any, count: int, name: str) -> Four | None:
    """Return the four numbers of what the kernel found; None if it takes more than the kernel.

    Args:
        found: what `measure` returned.
        count: of the elements.
        name: of their type.
    """
    nans, above, below, zeros, high, low, sums, squares = found
    # Squares that float64 cannot hold stand in units of their own.
    if squares[0] or squares[2]:
        return None
    if nans or above or below:
        found = ArrayStatistics(count, nans, above, below, zeros, high, low, sums[1], squares[1])
        return found.max, found.min, found.mean, found.norm
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
        # Unlike `abs`, which raises where a float is too small for it.
        value = math.hypot(value.real, value.imag)
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
