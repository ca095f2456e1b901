"""The pool that measures the host's tensors of a record and writes their data (_write_pool.c).

    values of a record ─► files to write, tensors to measure ─► the end of the block
    its end ─► torch's threads do both; meanwhile: second names, and what was deferred

Where torch computes on every core, its threads wait there for the next operation: no other thread
would be let in, so they do it themselves. A tensor may change as soon as the block has ended.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.capture.transforms import without_transforms
from tensorprobe.store.forks import in_process, this_process
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.summary.host import view_place
from tensorprobe.summary.statistics import (
    Four,
    Measured,
    StatisticsQueue,
    host_kernel,
    numbers_of,
    plan_on_host,
)
from tensorprobe.system.extensions import load_compiled
from tensorprobe.system.interrupts import uninterrupted

__all__ = ["Borrow", "HostWritePool", "has_torch_threads", "make_write_pool"]

Borrow = Callable[[int], "tuple[int, Callable[[], None]] | None"]
"""Gives memory of a size: its address, and what gives it back; None where there is no room."""

_born = this_process()


class HostWritePool(Protocol):
    """What is to be measured and written by the end of a `with` block."""

    @property
    def is_running(self) -> bool:
        """Whether files are being written."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def write(
        self,
        file: PendingFile,
        address: int,
        size: int,
        tensor: torch.Tensor,
        release: Callable[[], None] | None = None,
        /,
    ) -> None:
        """Have a file written with what lies at an address, the elements of a tensor in C order.

        Args:
            file: the promised file.
            address: of its content.
            size: of its content, in bytes.
            tensor: whose data they are; kept until then.
            release: called when the content is no longer needed.
        """

    def link(self, file: PendingFile, source: PendingFile, /) -> bool:
        """Have a file become another one's second name, if that is done or is done here."""

    def ask(self, tensor: torch.Tensor, /) -> Measured:
        """Have a tensor measured; its numbers are there when the block ends."""

    def defer(self, chore: Callable[[], None], /) -> None:
        """Have something done while a file is written, at the latest by `drain`."""

    def finish(self) -> None:
        """Measure everything now, and write or copy it, inside the block."""

    def empty(self) -> None:
        """Write all that waits: somebody needs the memory."""

    def drain(self) -> None:
        """Write all files, give them their second names, and do what was deferred."""


def make_write_pool(
    lock: threading.RLock,
    statistics: StatisticsQueue,
    forget: Callable[[], None],
    borrow: Borrow,
    fail: Callable[[str, Exception], None],
    region: Callable[[], int] | None = None,
) -> HostWritePool | None:
    """Return a pool; None where there is nothing to make it of.

    Args:
        lock: held in the block, which may be entered again.
        statistics: measures what the kernel does not.
        forget: told when the numbers that were promised will not come.
        borrow: gives memory for copies.
        fail: told in words what could not be done of what was deferred, and the error.
        region: says what makes torch's threads run a function, 0 where the caller shall do it; by
            default that is found out.
    """
    compiled = load_compiled(
        "tensorprobe.capture._calls", "HostWritePool", part="capture._write_pool"
    )
    kernel = host_kernel()
    if compiled is None or not hasattr(kernel, "measuring"):
        return None

    def ask_alone(tensor: torch.Tensor) -> Four | None:
        with without_dispatch_modes(), without_transforms():
            return statistics.ask(tensor).numbers

    pool: HostWritePool = compiled.HostWritePool(
        {
            "lock": lock,
            "region": region or _region_of_process(),
            "ask_elsewhere": statistics.ask,
            "ask_alone": ask_alone,
            "plan": plan_on_host,
            "measured_class": Measured,
            "numbers_of": numbers_of,
            "view_place": view_place,
            "forget": forget,
            "borrow": borrow,
            "fail": fail,
            "hold": uninterrupted,
            "measuring": kernel.measuring,
        }
    )
    return pool


def _region_of_process() -> Callable[[], int]:
    """Return what says where torch's threads are reached; a forked child has none of them."""
    process = this_process()
    # Asked when the first files come: torch's threads start with its first operation.
    is_there: bool | None = None

    def region() -> int:
        nonlocal is_there
        if is_there is None:
            is_there = has_torch_threads()
        return find_region() if is_there and in_process(process) else 0

    return region


def has_torch_threads() -> bool:
    """Whether torch's threads are there, and of this process: a fork takes none of them along.

    Whoever has them run something in such a child waits for ever.
    """
    if not in_process(_born):
        return False
    is_child = multiprocessing.parent_process() is not None
    if is_child and multiprocessing.get_start_method(allow_none=True) not in (
        "spawn",
        "forkserver",
    ):
        return False
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return False
    # A process may have been forked before this was imported.
    return threads - threading.active_count() >= torch.get_num_threads() - 1


@functools.cache
def find_region() -> int:
    """Return the address of what makes torch's threads run a function; 0 where it is not known."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        # It is loaded; this finds the OpenMP that it was linked with, of perhaps several.
        library: Any = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
