"""One pass over a tensor on a GPU by one kernel, its numbers left in a row of a table there.

A row holds the largest and smallest element (passing over NaN), the count of NaN, and the sum and
sum of squares in float64. Programs add their part with atomics, so a tensor costs one launch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

__all__ = ["ROWS", "GpuTable", "is_supported"]

ROWS = 8192
# Small enough for its accumulators to stay in registers.
_BLOCK = 1024
_MOST_PROGRAMS = 2112
_SUPPORTED = frozenset((torch.float32, torch.float16, torch.bfloat16))


@triton.jit(do_not_specialize=["count", "row"])
def _reduce(data, count, extremes, sums, row, BLOCK: tl.constexpr):
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    start = tl.program_id(0).to(tl.int64) * BLOCK
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    nans = tl.zeros((BLOCK,), tl.int32)
    lanes = tl.arange(0, BLOCK)
    while start < count:
        places = start + lanes
        inside = places < count
        values = tl.load(data + places, mask=inside, other=0.0).to(tl.float32)
        is_nan = values != values
        nans += (is_nan & inside).to(tl.int32)
        high = tl.maximum(high, tl.where(inside & (is_nan == 0), values, float("-inf")))
        low = tl.minimum(low, tl.where(inside & (is_nan == 0), values, float("inf")))
        total += values
        squares += values * values
        start += step
    tl.atomic_max(extremes + row * 2, tl.max(high, 0))
    tl.atomic_min(extremes + row * 2 + 1, tl.min(low, 0))
    tl.atomic_add(sums + row * 3, tl.sum(total.to(tl.float64), 0))
    tl.atomic_add(sums + row * 3 + 1, tl.sum(squares.to(tl.float64), 0))
    tl.atomic_add(sums + row * 3 + 2, tl.sum(nans, 0).to(tl.float64))


def is_supported(tensor: torch.Tensor) -> bool:
    """Whether the kernel can measure a tensor."""
    return tensor.is_cuda and tensor.dtype in _SUPPORTED and tensor.ndim > 0


class GpuTable:
    """The numbers of up to `ROWS` tensors of one device, until they are fetched."""

    def __init__(self, device: torch.device) -> None:
        self._extremes = torch.empty((ROWS, 2), dtype=torch.float32, device=device)
        self._sums = torch.empty((ROWS, 3), dtype=torch.float64, device=device)
        self._counts: list[int] = []
        self._clear()

    def __len__(self) -> int:
        return len(self._counts)

    def measure(self, tensor: torch.Tensor) -> int:
        """Start measuring a tensor; returns its row."""
        flat = tensor.detach()
        if not flat.is_contiguous():
            # Numbers have no order: a permuted tensor is read as it lies in memory.
            if _is_dense(flat):
                flat = flat.as_strided((flat.numel(),), (1,), flat.storage_offset())
            else:
                flat = flat.contiguous()
        count = flat.numel()
        row = len(self._counts)
        self._counts.append(count)
        programs = min(triton.cdiv(count, _BLOCK), _MOST_PROGRAMS)
        if tensor.device.index == torch.cuda.current_device():
            _reduce[(programs,)](flat, count, self._extremes, self._sums, row, BLOCK=_BLOCK)
        else:
            with torch.cuda.device(tensor.device):
                _reduce[(programs,)](flat, count, self._extremes, self._sums, row, BLOCK=_BLOCK)
        return row

    def fetch(self) -> list[tuple[float, float, float, float]]:
        """Wait for the device and return all rows; the table is empty again."""
        count = len(self._counts)
        # Tensors may have been measured on several streams.
        torch.cuda.synchronize(self._extremes.device)
        extremes = self._extremes[:count].cpu().tolist()
        sums = self._sums[:count].cpu().tolist()
        rows = []
        for (high, low), (total, squares, nans), size in zip(
            extremes, sums, self._counts, strict=True
        ):
            nan = math.nan
            rows.append(
                (nan, nan, nan, nan)
                if nans
                else (high, low, total / size, math.sqrt(squares) if squares == squares else nan)
            )
        self._counts = []
        self._clear()
        return rows

    def _clear(self) -> None:
        self._extremes[:, 0] = -math.inf
        self._extremes[:, 1] = math.inf
        self._sums.zero_()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill a piece of memory without holes or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
