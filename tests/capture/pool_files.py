"""A pool with files that it can write, for the tests of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from tensorprobe.capture.host_write_pool import Borrow, find_region, make_write_pool
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.summary.statistics import StatisticsQueue

__all__ = ["MEGABYTE", "PoolFiles", "has_compiled_pool"]

MEGABYTE = 1 << 20


class PoolFiles:
    """A pool of its own, whose files go to a folder.

    Args:
        folder: where they go.
        borrow: gives memory for copies; by default some transport does.
        region: what makes torch's threads run a function; by default that is looked for.
    """

    def __init__(
        self, folder: Path, borrow: Borrow | None = None, region: int | None = None
    ) -> None:
        self.folder = folder
        self.failures: list[str] = []
        self.transport = TensorTransport(64 * MEGABYTE)
        self.statistics = StatisticsQueue()
        address = find_region() if region is None else region
        pool = make_write_pool(
            threading.RLock(),
            self.statistics,
            lambda: None,
            borrow or self.transport.borrow,
            self.fail,
            lambda: address,
        )
        assert pool is not None
        self.pool = pool

    def fail(self, what: str, err: Exception | None) -> None:
        self.failures.append(f"{what}: {err}")

    def lose(self, name: str, data_name: str, err: Exception | None) -> None:
        self.failures.append(f"{name} in {data_name}: {err}")

    def promise(self, name: str, frame: tuple[bytes, bytes] = (b"", b"")) -> PendingFile:
        return PendingFile(name, str(self.folder), name, "", frame, self.lose)

    def begin(
        self, name: str, tensor: torch.Tensor, release: Callable[[], None] | None = None
    ) -> PendingFile:
        """Have a file written at the end of the record."""
        file = self.promise(name)
        self.pool.write(file, tensor.data_ptr(), tensor.nbytes, tensor, release)
        return file

    def write(self, name: str, size: int) -> PendingFile:
        """Have a file of this size written as all that a record has."""
        with self.pool:
            return self.begin(name, torch.full((size,), len(name), dtype=torch.uint8))


def has_compiled_pool() -> bool:
    """Whether there is a pool at all."""
    lock, queue = threading.RLock(), StatisticsQueue()
    return (
        make_write_pool(lock, queue, lambda: None, lambda size: None, lambda *_: None) is not None
    )
