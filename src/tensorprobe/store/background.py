"""Write tensor files while the training goes on, in no more memory than a budget allows.

    the training ─► BufferPool.take ─► a copy of the bytes ─► BackgroundWriter.submit
                        ▲                                            │
                        └────────────── BufferPool.give ◄────────────┘ a few threads

The budget bounds every buffer that exists, in use or kept for the next tensor. Threads run while
there is work: after `drain` none is left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorprobe.system.cores import count_cores
from tensorprobe.system.thread_pool import ThreadPool

__all__ = ["BackgroundWriter", "Buffer", "BufferPool", "allocate_plain"]

Memory = npt.NDArray[np.uint8]
Allocate = Callable[[int], tuple[Any, Memory]]
"""Makes memory of a size: what owns it, and its bytes."""

# A page: below it a smaller buffer saves nothing.
_SMALLEST = 1 << 12


def _usual_threads() -> int:
    """Return how many threads write: one of four cores, as the training needs them too.

    Writing is copying into the page cache, which one core does at the speed of a good disk; two
    threads in one folder already cost each other time.
    """
    return max(1, min(4, count_cores() // 4))


def allocate_plain(size: int) -> tuple[Any, Memory]:
    """Make memory of the usual kind."""
    memory: Memory = np.empty(size, np.uint8)
    return memory, memory


class Buffer(NamedTuple):
    """Memory from a pool, at least as large as was asked for.

    Attributes:
        owner: what the allocator made, such as a pinned tensor.
        memory: its bytes.
        allocate: what made it.
    """

    owner: Any
    memory: Memory
    allocate: Allocate


class BufferPool:
    """Buffers that are used again and again, and that together never exceed a budget.

    >>> pool = BufferPool(budget=8192)
    >>> first = pool.take(5000)
    >>> first.memory.nbytes, pool.take(1) is None
    (8192, True)
    >>> pool.give(first)
    >>> pool.take(8000).memory is first.memory
    True

    Args:
        budget: the most bytes of all buffers together.
    """

    def __init__(self, budget: int) -> None:
        self.budget = max(budget, _SMALLEST)
        self._free: dict[tuple[Allocate, int], list[Buffer]] = {}
        self._held = 0
        self._free_bytes = 0
        # Not a condition: an interrupt in the moment when one takes its lock keeps that locked.
        self._lock = threading.RLock()
        self._waiting: list[SimpleQueue[None]] = []

    @property
    def held(self) -> int:
        """The bytes of all buffers that exist."""
        return self._held

    @property
    def used(self) -> int:
        """The bytes of all buffers that somebody has."""
        return self._held - self._free_bytes

    @property
    def largest(self) -> int:
        """The size of the largest buffer that leaves room for three more."""
        return max(_SMALLEST, 1 << ((self.budget // 4).bit_length() - 1))

    def take(
        self, size: int, allocate: Allocate = allocate_plain, *, wait: bool = False
    ) -> Buffer | None:
        """Return a buffer of at least this size.

        Args:
            size: in bytes.
            allocate: the kind of memory.
            wait: whether to wait for others to give buffers back, where the budget is used up.

        Returns:
            The buffer; None if there is no room for it, now or, with `wait`, ever.
        """
        # Powers of two: sizes repeat, and the allocator of pinned memory rounds to them too.
        size = max(_SMALLEST, 1 << (size - 1).bit_length()) if size else _SMALLEST
        key = allocate, size
        while True:
            with self._lock:
                if free := self._free.get(key):
                    self._free_bytes -= size
                    return free.pop()
                if self.used + size <= self.budget:
                    self._make_room(size)
                    self._held += size
                    break
                if not wait or size > self.budget:
                    return None
                bell: SimpleQueue[None] = SimpleQueue()
                self._waiting.append(bell)
            bell.get()
        try:
            return Buffer(*allocate(size), allocate)
        except BaseException:
            with self._lock:
                self._held -= size
            raise

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        size = buffer.memory.nbytes
        with self._lock:
            self._free.setdefault((buffer.allocate, size), []).append(buffer)
            self._free_bytes += size
            waiting, self._waiting = self._waiting, []
        for bell in waiting:
            bell.put(None)

    def clear(self) -> None:
        """Let go of all buffers that are not in use."""
        with self._lock:
            self._free.clear()
            self._held -= self._free_bytes
            self._free_bytes = 0

    def _make_room(self, size: int) -> None:
        """Let go of free buffers of other sizes until one of this size fits."""
        for key in list(self._free):
            free = self._free[key]
            while free and self._held + size > self.budget:
                free.pop()
                self._held -= key[1]
                self._free_bytes -= key[1]
            if not free:
                del self._free[key]


class BackgroundWriter:
    """Runs jobs in a few threads of its own, in the order in which they came.

    A job deals with its own trouble; what it raises nevertheless is kept from the threads and
    told by `drain`.

    >>> done = []
    >>> writer = BackgroundWriter()
    >>> for number in range(3):
    ...     writer.submit(lambda number=number: done.append(number))
    >>> writer.drain()
    >>> sorted(done)
    [0, 1, 2]

    Args:
        threads: how many at most; by default a few, by the cores of this process.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = ThreadPool(threads or _usual_threads())
        self._error: Exception | None = None
        self._process = os.getpid()

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job run soon."""
        self._threads.submit(self._run, job)

    def drain(self) -> None:
        """Return when every job has run and every thread has ended.

        A forked child, which has none of the threads, returns at once.

        Raises:
            Exception: what the first job raised that raised at all.
        """
        if os.getpid() != self._process:
            return
        self._threads.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as err:  # noqa: BLE001 - raised by the next drain
            self._error = self._error or err
