"""CRC-32 of a tensor's bytes on a GPU, equal to zlib's, without bringing the tensor over.

Lane `i` of L takes the words i, i + L, i + 2L, …, so that neighbours read neighbouring words;
between two words its state moves on by L words. At the end each lane moves its state on by what
follows its last word, and all states are added. See `gf2` for the algebra.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tensorprobe.summary.gf2 import finish_checksum, word_tables

__all__ = ["GpuChecksums"]

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
    tl.atomic_xor(states + row, tl.xor_sum(state, 0).to(tl.int32, bitcast=True))


class GpuChecksums:
    """The checksums of up to 8192 tensors of one device, until they are fetched."""

    def __init__(self, device: torch.device) -> None:
        tables = word_tables().reshape(-1).view("int32")
        self._tables = torch.from_numpy(tables.copy()).to(device).view(torch.uint32)
        self._states = torch.zeros(_ROWS, dtype=torch.int32, device=device)
        self._tails = torch.zeros((_ROWS, 3), dtype=torch.uint8, device=device)
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def is_full(self) -> bool:
        """Whether the next one needs a fetch first."""
        return len(self._sizes) == _ROWS

    def measure(self, tensor: torch.Tensor) -> None:
        """Start the checksum of a tensor's bytes in their logical order."""
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if data.data_ptr() % 4:
            data = data.clone()
        row = len(self._sizes)
        size = data.numel()
        self._sizes.append(size)
        words = size // 4
        if size % 4:
            self._tails[row, : size % 4] = data[words * 4 :]
        if not words:
            return
        lanes_log = min(_MOST_LANES_LOG, max(10, (words - 1).bit_length()))
        grid = ((1 << lanes_log) // _BLOCK,)
        with torch.cuda.device(tensor.device):
            _checksum[grid](
                data[: words * 4].view(torch.int32),
                words,
                self._tables,
                self._states,
                row,
                lanes_log,
                BLOCK=_BLOCK,
            )

    def fetch(self) -> list[int]:
        """Wait for the device and return all checksums; the table is empty again."""
        count = len(self._sizes)
        # Tensors may have been read on several streams.
        torch.cuda.synchronize(self._states.device)
        states = self._states[:count].cpu().tolist()
        tails = self._tails[:count].cpu().numpy()
        found = [
            finish_checksum(state & 0xFFFFFFFF, tail[: size % 4].tobytes(), size)
            for state, tail, size in zip(states, tails, self._sizes, strict=True)
        ]
        self._sizes = []
        self._states.zero_()
        return found
