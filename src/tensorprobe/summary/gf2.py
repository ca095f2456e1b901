"""The algebra of CRC-32 that lets pieces of a checksum be computed apart and put together.

With a start of zero the checksum is linear: each word adds its own part, moved on by the zero words
that follow it. Moving on by a number of words is a matrix over GF(2), kept as four tables of 256
entries, one per byte of the state.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["POWERS", "checksum_of_zeros", "finish_checksum", "word_tables"]

POWERS = 27
"""Tables exist for moving on by 1, 2, 4, … words, this many of them."""

_POLYNOMIAL = 0xEDB88320
_Columns = tuple[int, ...]


def _move_one_bit(state: int) -> int:
    return (state >> 1) ^ _POLYNOMIAL if state & 1 else state >> 1


def _apply(columns: _Columns, state: int) -> int:
    result = 0
    for bit in range(32):
        if state >> bit & 1:
            result ^= columns[bit]
    return result


@cache
def _bits_matrix(power: int) -> _Columns:
    """Return what moving on by 2**power zero bits does to each bit of the state."""
    if not power:
        return tuple(_move_one_bit(1 << bit) for bit in range(32))
    half = _bits_matrix(power - 1)
    return tuple(_apply(half, column) for column in half)


@lru_cache(maxsize=1)
def word_tables() -> npt.NDArray[np.uint32]:
    """Return the tables [power, byte, value] that move a state on by 2**power words."""
    tables = np.zeros((POWERS, 4, 256), np.uint32)
    for power in range(POWERS):
        columns = np.array(_bits_matrix(power + 5), np.uint32)
        for byte in range(4):
            for bit in range(8):
                # Linear: the entries with this bit are those without it, plus its column.
                low = 1 << bit
                tables[power, byte, low : 2 * low] = (
                    tables[power, byte, :low] ^ columns[8 * byte + bit]
                )
    return tables


def _move_on(state: int, count: int) -> int:
    """Move a state on by a number of zero bytes."""
    power = 3
    while count:
        if count & 1:
            state = _apply(_bits_matrix(power), state)
        count >>= 1
        power += 1
    return state


@lru_cache(maxsize=4096)
def checksum_of_zeros(count: int) -> int:
    """Return the CRC-32 of a number of zero bytes.

    >>> import zlib
    >>> checksum_of_zeros(1000) == zlib.crc32(bytes(1000))
    True
    """
    return _move_on(0xFFFFFFFF, count) ^ 0xFFFFFFFF


def finish_checksum(state: int, tail: bytes, count: int) -> int:
    """Return the CRC-32 of `count` bytes from the linear part of their words and the rest.

    Args:
        state: the linear part of the bytes but for the tail.
        tail: the last bytes, which fill no word.
        count: all bytes.

    >>> import zlib
    >>> finish_checksum(0, b"", 0) == zlib.crc32(b"")
    True
    """
    for byte in tail:
        state = _move_on(state ^ byte, 1)
    return state ^ checksum_of_zeros(count)
