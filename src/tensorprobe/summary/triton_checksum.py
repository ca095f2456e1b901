"""CRC-32 of a tensor's bytes on a GPU, equal to zlib's, without bringing the tensor over.

Lane `i` of L takes the words i, i + L, i + 2L, …, so that neighbours read neighbouring words;
between two words its state moves on by L words. At the end each lane moves its state on by what
follows its last word, and all states are added. See `gf2` for the algebra.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from tensorprobe.summary.gf2 import finish_checksum, word_tables
from tensorprobe.summary.transfer import StreamsOf, Transfer
from tensorprobe.summary.triton_launch import Launcher, TableArguments

__all__ = ["GpuChecksums", "read_rows"]

_BLOCK = 1024
# Lanes are a power of two; this many fill a large GPU.
_MOST_LANES_LOG = 20
_ROWS = 8192


@triton.jit
def _look_up(tables, power, state):
    base = tables + power * 1024
    low = tl.load(base + (state & 255)) ^ tl.load(base + 256 + ((state >> 8) & 255))
    high = tl.load(base + 512 + ((state >> 16) & 255)) ^ tl.load(base + 768 + ((state >> 24) & 255))
    return low ^ high


@triton.jit(do_not_specialize=["words", "row", "lanes_log"])
def _checksum(data, words, tables, states, row, lanes_log, BLOCK: tl.constexpr):
    lanes = tl.full((), 1, tl.int64) << lanes_log
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rounds = (words + lanes - 1) // lanes
    # As if zeros stood in front, so that every lane has the same number of words.
    place = lane - (rounds * lanes - words)
    state = tl.zeros((BLOCK,), tl.uint32)
    for _ in range(rounds):
        word = tl.load(data + place, mask=place >= 0, other=0).to(tl.uint32, bitcast=True)
        state = _look_up(tables, lanes_log, state) ^ word
        place += lanes
    rest = lanes - lane
    for power in range(lanes_log + 1):
        moved = _look_up(tables, power, state)
        state = tl.where(((rest >> power) & 1) != 0, moved, state)
    # Nobody reads it before the kernel has ended.
    tl.atomic_xor(states + row, tl.xor_sum(state, 0).to(tl.int32, bitcast=True), sem="relaxed")


_launcher = Launcher(_checksum, {"BLOCK": _BLOCK})


@functools.cache
def _tables_on(device: torch.device) -> torch.Tensor:
    tables = word_tables().reshape(-1).view("int32")
    return torch.from_numpy(tables.copy()).to(device).view(torch.uint32)


class GpuChecksums:
    """The checksums of up to 8192 tensors of one device."""

    def __init__(self, device: torch.device) -> None:
        self._tables = _tables_on(device)
        self._states = torch.zeros(_ROWS, dtype=torch.int32, device=device)
        self._tails = torch.zeros((_ROWS, 3), dtype=torch.uint8, device=device)
        self._arguments = TableArguments(self._tables, self._states)
        self._next = 0
        self._sizes: list[int] = []
        self._streams = StreamsOf(device)

    @property
    def is_full(self) -> bool:
        """Whether there is no row for another tensor."""
        return self._next == _ROWS

    def measure(self, tensor: torch.Tensor) -> None:
        """Start the checksum of a tensor's bytes in their logical order, in the next row."""
        data = tensor.detach()
        if not data.is_contiguous() or data.is_conj() or data.is_neg():
            data = data.resolve_conj().resolve_neg().contiguous()
        if data.data_ptr() % 4:
            data = data.clone()
        size = data.numel() * data.element_size()
        words = size // 4
        stream = self._streams.join()
        if size % 4:
            tail = data.reshape(-1).view(torch.uint8)[words * 4 :]
            self._tails[self._next, : size % 4] = tail
        if words:
            lanes_log = min(_MOST_LANES_LOG, max(10, (words - 1).bit_length()))
            _launcher.launch(
                data.reshape(-1).view(torch.uint8)[: words * 4].view(torch.int32),
                stream,
                (1 << lanes_log) // _BLOCK,
                words,
                self._arguments,
                self._next,
                lanes_log,
            )
        self._sizes.append(size)
        self._next += 1

    def send(self) -> tuple[Transfer, list[int]]:
        """Send off the rows since the last time; returns them and how many bytes each is of."""
        rows = slice(self._next - len(self._sizes), self._next)
        states, tails = self._states[rows], self._tails[rows]
        transfer = Transfer(states.device, self._streams.take(), lambda: (states, tails))
        sizes, self._sizes = self._sizes, []
        return transfer, sizes


def read_rows(tables: list[torch.Tensor], sizes: list[int]) -> list[int]:
    """Return the checksums from rows that have arrived."""
    states, tails = tables
    return [
        finish_checksum(state & 0xFFFFFFFF, tail[: size % 4].tobytes(), size)
        for state, tail, size in zip(states.tolist(), tails.numpy(), sizes, strict=True)
    ]
