"""CRC-32 of memory with the value of `zlib.crc32`, several times faster where it was compiled.

memory ─► a piece for each core, if it is large ─► _crc32.c, or zlib ─► the pieces' values combined
"""

from __future__ import annotations

import ctypes
import zlib
from functools import cache
from typing import Protocol

from tensorprobe.system.cores import count_cores
from tensorprobe.system.extensions import load_compiled
from tensorprobe.system.thread_pool import ThreadPool

__all__ = ["MODULE", "crc32", "load_crc32"]

MODULE = "tensorprobe._crc32"
"""The full name of the compiled module."""

# Below this a thread costs more than it saves.
_BYTES_PER_THREAD = 8 << 20


class CompiledCrc32(Protocol):
    """What `_crc32.c` offers. Addresses are integers; the caller keeps the memory alive."""

    ways: tuple[str, ...]
    """The ways of this processor, the fastest last; the first is by tables."""

    def crc32(self, address: int, length: int, value: int = 0, way: int = -1, /) -> int:
        """Return the checksum of some bytes, going on from that of the bytes before."""
        ...

    def combine(self, first: int, second: int, length: int, /) -> int:
        """Return the checksum of two pieces in a row; `length` is that of the second."""
        ...


def load_crc32() -> CompiledCrc32 | None:
    """Return the compiled checksum, or None where it is not there or was turned off."""
    module: CompiledCrc32 | None = load_compiled(MODULE, "crc32", "combine", "ways")
    return module


def crc32(address: int, length: int, value: int = 0, *, threads: int | None = None) -> int:
    """Return the CRC-32 of bytes in memory, as `zlib.crc32` has it.

    Args:
        address: of the first byte; the caller keeps the memory alive.
        length: how many bytes.
        value: the checksum of what comes before, to go on from.
        threads: how many may work on a large piece of memory; all cores of this process unless
            told.

    >>> memory = ctypes.create_string_buffer(b"tensor")
    >>> crc32(ctypes.addressof(memory), 6) == zlib.crc32(b"tensor")
    True
    """
    compiled = _fast()
    if compiled is None:
        # An empty tensor has no address, which ctypes refuses.
        memory = (ctypes.c_char * length).from_address(address) if length else b""
        return zlib.crc32(memory, value)
    if length < 2 * _BYTES_PER_THREAD:
        return compiled.crc32(address, length, value)
    return _shared(compiled, address, length, value, threads or count_cores())


@cache
def _fast() -> CompiledCrc32 | None:
    # Looking for it asks the environment, each time. zlib's own tables are better than ours.
    compiled = load_crc32()
    return None if compiled is None or len(compiled.ways) < 2 else compiled


def _shared(compiled: CompiledCrc32, address: int, length: int, value: int, threads: int) -> int:
    workers = min(threads, length // _BYTES_PER_THREAD)
    if workers < 2:
        return compiled.crc32(address, length, value)
    # Pieces of whole pages; the last may be shorter.
    piece = -(-length // (workers * 4096)) * 4096
    starts = range(piece, length, piece)
    with ThreadPool(workers - 1) as pool:
        others = [
            pool.submit(compiled.crc32, address + start, min(piece, length - start))
            for start in starts
        ]
        total = compiled.crc32(address, piece, value)
        for start, other in zip(starts, others, strict=True):
            total = compiled.combine(total, other.result(), min(piece, length - start))
    return total
