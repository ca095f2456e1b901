"""One pass over a tensor on a GPU by one kernel, its numbers left in a row of a table there.

A row holds the largest and smallest element (passing over NaN), the sum and the sum of squares in
float64; a sum of squares that is NaN says that there was a NaN. Programs add their part with
atomics, so a tensor costs one launch. A permuted tensor is read as it lies in memory, and so is one
that lies there in pieces, as the parts of a split do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tensorprobe.records import Number
from tensorprobe.summary.layout import merged_layout
from tensorprobe.summary.transfer import StreamsOf, Transfer
from tensorprobe.summary.triton_launch import ALIGNED, LARGEST_COUNT, Launcher, TableArguments
from tensorprobe.system.extensions import load_compiled

__all__ = ["GpuTable", "can_measure", "read_rows"]

_Four = tuple[Number | None, Number | None, Number | None, Number | None]
_ROWS = 8192
# Tried on an H200: 4.3 TB/s over 268 MB of bfloat16, 7.4 us for 17 MB, 1.9 us for 1024 elements.
# More programs wait for each other at the end; with larger blocks small tensors take longer.
_BLOCK = 1024
_UNROLL = 4
_WARPS = 8
_MOST_PROGRAMS = 528
# Pieces of a multiple of so many elements, which begin at multiples of so many: loads may be wide.
_PIECE = 64
_EVEN = 16
# What stands in place of a count: a tensor without dimensions is its own mean, truths have none.
_SINGLE = 0
_TRUTHS = -1
_NUMBERS = frozenset(
    (
        *(torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
)


@triton.jit
def _join(high, low, total, squares, other_high, other_low, other_total, other_squares):
    return (
        tl.maximum(high, other_high),
        tl.minimum(low, other_low),
        total + other_total,
        squares + other_squares,
    )


@triton.jit
def _add_part(high, low, total, squares, extremes, sums, row):
    # All four together: each alone would wait for all warps.
    most, least, whole, power = tl.reduce(
        (high, low, total.to(tl.float64), squares.to(tl.float64)), 0, _join
    )
    # Nobody reads them before the kernel has ended, so nobody need be waited for.
    tl.atomic_max(extremes + row * 2, most.to(tl.float64), sem="relaxed")
    tl.atomic_min(extremes + row * 2 + 1, least.to(tl.float64), sem="relaxed")
    tl.atomic_add(sums + row * 2, whole, sem="relaxed")
    tl.atomic_add(sums + row * 2 + 1, power, sem="relaxed")


@triton.jit(do_not_specialize=["count", "row"])
def _reduce(data, count, extremes, sums, row, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    step = tl.num_programs(0).to(tl.int64) * (BLOCK * UNROLL)
    start = tl.program_id(0).to(tl.int64) * (BLOCK * UNROLL)
    lanes = tl.arange(0, BLOCK)
    # Whole numbers are added up without rounding.
    kind: tl.constexpr = tl.float32 if data.dtype.element_ty.is_floating() else tl.float64
    high = tl.full((BLOCK,), float("-inf"), kind)
    low = tl.full((BLOCK,), float("inf"), kind)
    total = tl.zeros((BLOCK,), kind)
    squares = tl.zeros((BLOCK,), kind)
    while start + BLOCK * UNROLL <= count:
        for part in tl.static_range(UNROLL):
            values = tl.load(data + start + part * BLOCK + lanes).to(kind)
            high = tl.maximum(high, values)
            low = tl.minimum(low, values)
            total += values
            squares += values * values
        start += step
    if start < count:
        for part in tl.static_range(UNROLL):
            places = start + part * BLOCK + lanes
            inside = places < count
            values = tl.load(data + places, mask=inside, other=0).to(kind)
            high = tl.maximum(high, tl.where(inside, values, float("-inf")))
            low = tl.minimum(low, tl.where(inside, values, float("inf")))
            total += values
            squares += values * values
    _add_part(high, low, total, squares, extremes, sums, row)


@triton.jit(do_not_specialize=["count", "row", "length", "distance"])
def _reduce_pieces(
    data, count, extremes, sums, row, length, distance,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    distance = tl.multiple_of(distance, EVEN)
    pieces = count // PIECE
    along = length // PIECE
    together: tl.constexpr = BLOCK // PIECE
    step = tl.num_programs(0) * (together * UNROLL)
    start = tl.program_id(0) * (together * UNROLL)
    lanes = tl.arange(0, PIECE)
    kind: tl.constexpr = tl.float32 if data.dtype.element_ty.is_floating() else tl.float64
    high = tl.full((together, PIECE), float("-inf"), kind)
    low = tl.full((together, PIECE), float("inf"), kind)
    total = tl.zeros((together, PIECE), kind)
    squares = tl.zeros((together, PIECE), kind)
    while start < pieces:
        for part in tl.static_range(UNROLL):
            numbers = start + part * together + tl.arange(0, together)
            inside = (numbers < pieces)[:, None]
            firsts = (numbers // along).to(tl.int64) * distance + (numbers % along) * PIECE
            values = tl.load(data + firsts[:, None] + lanes[None, :], mask=inside, other=0)
            values = values.to(kind)
            high = tl.maximum(high, tl.where(inside, values, float("-inf")))
            low = tl.minimum(low, tl.where(inside, values, float("inf")))
            total += values
            squares += values * values
        start += step
    _add_part(
        tl.reshape(high, (BLOCK,)),
        tl.reshape(low, (BLOCK,)),
        tl.reshape(total, (BLOCK,)),
        tl.reshape(squares, (BLOCK,)),
        extremes,
        sums,
        row,
    )


_launcher = Launcher(_reduce, {"BLOCK": _BLOCK, "UNROLL": _UNROLL}, num_warps=_WARPS)
_piece_launcher = Launcher(
    _reduce_pieces,
    {"BLOCK": _BLOCK, "UNROLL": _UNROLL, "PIECE": _PIECE, "EVEN": _EVEN},
    num_warps=_WARPS,
)


def can_measure(tensor: torch.Tensor) -> bool:
    """Whether a row of a table can hold the numbers of a tensor of a GPU, which is not empty."""
    return tensor.dtype in _NUMBERS or (tensor.dtype is torch.bool and tensor.ndim > 0)


class _Rows:
    """Who waits for which row of a table, since the last batch was sent off."""

    has_exchange = False

    def __init__(self) -> None:
        self.next = 0
        self._waiting: list[Any] = []
        self._counts: list[int] = []

    def ask(self, tensor: torch.Tensor) -> None:
        """Measure nothing: here no tensor is a usual one."""

    def add(self, measured: Any, count: int) -> None:
        """Add the next row, of a tensor with so many elements."""
        self._waiting.append(measured)
        self._counts.append(count)
        self.next += 1

    def set_stream(self, stream: int) -> None:
        """Note the stream that writes from now on."""

    def take(self) -> tuple[list[Any], list[int]]:
        """Return those that wait and their counts, and forget them."""
        taken = self._waiting, self._counts
        self._waiting, self._counts = [], []
        return taken


class GpuTable:
    """The numbers of up to 8192 tensors of one device.

    Args:
        device: the device.
        measured_class: makes what waits for a row.

    Attributes:
        ask: measures a tensor like those before and returns what waits for its numbers; None if it
            is another, for `measure`.
        asks_tensors_themselves: whether `ask` has a tensor say where its elements lie, which one
            that is not plain cannot.
    """

    def __init__(self, device: torch.device, measured_class: Callable[[None], Any]) -> None:
        self._extremes = torch.empty((_ROWS, 2), dtype=torch.float64, device=device)
        self._extremes[:, 0] = -math.inf
        self._extremes[:, 1] = math.inf
        self._sums = torch.zeros((_ROWS, 2), dtype=torch.float64, device=device)
        self._arguments = TableArguments(self._extremes, self._sums)
        self._streams = StreamsOf(device)
        self._index = self._extremes.get_device()
        self._measured_class = measured_class
        # How the driver launches the kernel: its handle, threads and shared memory, and whether
        # it is for truths; and the kernel for pieces.
        self._ways: dict[torch.dtype, tuple[int, int, int, bool]] = {}
        self._piece_ways: dict[torch.dtype, tuple[int, int, int, bool]] = {}
        self._rows = self._make_rows()
        # A step asks a thousand times.
        self.ask: Callable[[torch.Tensor], Any] = self._rows.ask
        self.asks_tensors_themselves = bool(self._rows.has_exchange)

    def _make_rows(self) -> Any:
        compiled = load_compiled("tensorprobe.summary._launch", "Rows")
        if compiled is None:
            return _Rows()
        return compiled.Rows(
            self._ways,
            self._piece_ways,
            self._measured_class,
            torch._C._cuda_getCurrentRawStream,
            torch._C._cuda_getDevice,
            # One question in place of five; torch has it from 2.10 on.
            getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
            self._index,
            *self._arguments.addresses,
            _ROWS,
            _BLOCK * _UNROLL,
            _MOST_PROGRAMS,
            ALIGNED,
            LARGEST_COUNT,
            _PIECE,
            _EVEN,
        )

    @property
    def is_full(self) -> bool:
        """Whether there is no row for another tensor."""
        return bool(self._rows.next == _ROWS)

    def measure(self, tensor: torch.Tensor, count: int) -> Any:
        """Start measuring a tensor of so many elements; returns what waits for its numbers."""
        if tensor.is_neg():
            # Its memory does not hold its numbers.
            tensor = tensor.detach().resolve_neg()
        pieces: tuple[int, ...] = ()
        if not tensor.is_contiguous():
            layout = merged_layout(tensor)
            pieces = _pieces_of(layout)
            # Numbers have no order: a permuted tensor is read as it lies in memory.
            if not pieces and (len(layout) != 1 or layout[0][0] != 1):
                tensor = tensor.detach().contiguous()
        programs = min(-(-count // (_BLOCK * _UNROLL)), _MOST_PROGRAMS)
        stream = self._streams.join()
        launcher, ways = (_piece_launcher, self._piece_ways) if pieces else (_launcher, self._ways)
        launcher.launch(tensor, stream, programs, count, self._arguments, self._rows.next, *pieces)
        are_truths = tensor.dtype is torch.bool
        if tensor.dtype not in ways:
            way = launcher.quick_way(self._index, tensor.dtype, 1 + len(pieces))
            if way is not None:
                ways[tensor.dtype] = (*way, are_truths)
        self._rows.set_stream(stream)
        measured = self._measured_class(None)
        self._rows.add(measured, _TRUTHS if are_truths else count if tensor.ndim else _SINGLE)
        return measured

    def send(self) -> tuple[Transfer, list[Any], list[int]] | None:
        """Send off the rows since the last time, if there are any.

        Returns:
            The rows, who waits for each, and how many elements each is of.
        """
        waiting, counts = self._rows.take()
        if not waiting:
            return None
        rows = slice(self._rows.next - len(counts), self._rows.next)
        extremes, sums = self._extremes[rows], self._sums[rows]
        transfer = Transfer(extremes.device, self._streams.take(), lambda: (extremes, sums))
        return transfer, waiting, counts


def _pieces_of(layout: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return length and distance of the pieces that a tensor lies in, if the kernel takes them."""
    if len(layout) != 2 or layout[0][0] != 1:
        return ()
    (_, length), (distance, _) = layout
    if length % _PIECE or distance % _EVEN or max(length, distance) > LARGEST_COUNT:
        return ()
    return length, distance


def read_rows(tables: list[torch.Tensor], counts: list[int]) -> list[_Four]:
    """Return maximum, minimum, mean and norm from rows that have arrived."""
    extremes, sums = (table.tolist() for table in tables)
    return [
        _numbers_of(high, low, total, squares, count)
        for (high, low), (total, squares), count in zip(extremes, sums, counts, strict=True)
    ]


def _numbers_of(high: float, low: float, total: float, squares: float, count: int) -> _Four:
    if squares != squares:
        return (math.nan,) * 4
    if count > 0:
        return high, low, total / count, math.sqrt(squares)
    if count == _SINGLE:
        return (high,) * 4
    return bool(high), bool(low), None, None
