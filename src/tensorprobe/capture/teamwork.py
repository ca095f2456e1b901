"""Measure the host's tensors of a record and write their data at the same time.

    with team:  drafts ─► tensors to measure, files to write
    at its end  ─► torch's threads do both ─► numbers, files, which get their names the next time
                   meanwhile: what is owed in Python

Where torch computes on every core, its threads wait there for the next operation: no other thread
would be let in, so they do it themselves. A record's values do not change before the block ends.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.capture.transforms import without_transforms
from tensorprobe.new_file import HiddenFile
from tensorprobe.store.forks import in_process, this_process
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.summary.statistics import (
    Four,
    Measured,
    StatisticsQueue,
    host_kernel,
    numbers_of,
    plan_on_host,
)

__all__ = ["Teamwork"]

# Each file is open until the block ends, and a process has a limited number of them.
_MOST_FILES = 8

# Plain tuples: a step has hundreds of each.
_Writing = tuple[PendingFile, int, int, torch.Tensor, "Callable[[], None] | None"]
"""A file to be written: address and size of its content, whose that is, what to do after."""
_Content = tuple[int, bytes, int, int, bytes]
"""What is written to a descriptor: header, address and size of the content, trailer."""
_Array = tuple[int, int, str]
"""What is measured: the address of elements without a gap, how many, of what type."""
_Awaited = tuple[Measured, torch.Tensor, object]
"""Who waits for its numbers: those of a tensor, and what the array belongs to."""
_Naming = tuple[PendingFile, "PendingFile | None"]
"""A file that gets its name; the other is the one whose second name it is."""

_born = this_process()


class Teamwork:
    """What is to be measured and written by the end of a `with` block.

    Args:
        kernel: the compiled kernel.
        lock: held in the block, which may be entered again.
        statistics: measures what the kernel does not.
        forget: told when the numbers that were promised will not come.
    """

    def __init__(
        self,
        kernel: Any,
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
    ) -> None:
        self._measure_and_write = kernel.measure_and_write
        self._lock: Any = lock
        self._statistics = statistics
        self._forget = forget
        self._writings: list[_Writing] = []
        self._arrays: list[_Array] = []
        self._awaited: list[_Awaited] = []
        # Files that have no name yet.
        self._unnamed: set[PendingFile] = set()
        self._links: list[_Naming] = []
        # Of files that are written: there is time for it while the next one is.
        self._namings: list[_Naming] = []
        # Those that got their names, or an error.
        self._named: list[tuple[_Naming, int]] = []
        self._owed: list[Callable[[], None]] = []
        # A file of the next tensor, open, and one that tells where.
        self._stock: list[HiddenFile] = []
        self._last: PendingFile | None = None
        # Whether an interrupt may have left a file that nobody knows.
        self._is_torn = False
        self._has_team: bool | None = None

    @staticmethod
    def make(
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
    ) -> Teamwork | None:
        """Return one, None where there is nothing to do it with."""
        kernel = host_kernel()
        if not hasattr(kernel, "measure_and_write"):
            return None
        return Teamwork(kernel, lock, statistics, forget)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._is_torn |= kind is not None and not issubclass(kind, Exception)
            self._finish()
        finally:
            self._lock.release()

    def write(
        self,
        file: PendingFile,
        address: int,
        size: int,
        tensor: torch.Tensor,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Have a file written with what lies at an address, the elements of a tensor in C order.

        Args:
            file: the promised file.
            address: of its content.
            size: of its content, in bytes.
            tensor: whose data they are; kept until then.
            release: called when the content is no longer needed.
        """
        self._writings.append((file, address, size, tensor, release))
        self._unnamed.add(file)
        if len(self._writings) >= _MOST_FILES:
            self._finish()

    def link(self, file: PendingFile, source: PendingFile) -> bool:
        """Have a file become another one's second name, if that is done or is done here."""
        if not source.is_done and source not in self._unnamed:
            return False
        self._links.append((file, source))
        return True

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Have a tensor measured; its numbers are there when the block ends."""
        ordered = None
        if self._writings:
            # Its data may just have been put in order, to be written.
            _, address, _, written, _ = self._writings[-1]
            ordered = address if written is tensor else None
        plan = plan_on_host(tensor, ordered)
        if plan is None:
            return self._statistics.ask(tensor)
        measured = Measured(None)
        self._arrays.append(plan[:3])
        self._awaited.append((measured, tensor, plan[3]))
        return measured

    def owe(self, chore: Callable[[], None]) -> None:
        """Have something done while a file is written, at the latest by `settle`."""
        self._owed.append(chore)

    def settle(self) -> None:
        """Give all files that are written their names, and do what is owed."""
        with self._lock:
            self._finish()
            try:
                while self._namings or self._named or self._owed:
                    self._work()
            finally:
                stock, self._stock = self._stock, []
                for hidden in stock:
                    hidden.discard()

    def sweep(self) -> None:
        """Remove what an interrupt has left; every file is written or lost."""
        if self._is_torn and self._last is not None:
            self._is_torn = False
            self._last.remove_hidden()

    def _finish(self) -> None:
        """Measure and write everything now."""
        if self._writings or self._arrays:
            self._work()
        if self._links:
            self._namings += self._links
            self._links = []

    def _work(self) -> None:
        writings, self._writings = self._writings, []
        arrays, self._arrays = self._arrays, []
        awaited, self._awaited = self._awaited, []
        namings, self._namings = self._namings, []
        try:
            opened, contents = self._open(writings)
            found, written, named = self._measure_and_write(
                self._region(),
                arrays,
                contents,
                [file.naming(source) for file, source in namings],
                self._do_meanwhile,
            )
            for (measured, tensor, _), (_, count, name), numbers in zip(
                awaited, arrays, found, strict=True
            ):
                measured.numbers = numbers_of(numbers, count, name) or self._ask_alone(tensor)
            self._named += zip(namings, named, strict=True)
            for file, error in zip(opened, written, strict=True):
                if file.close(error):
                    self._namings.append((file, None))
        except BaseException as err:
            self._is_torn |= not isinstance(err, Exception)
            self._forget()
            reason = err if isinstance(err, Exception) else InterruptedError("it was interrupted")
            for file in [naming[0] for naming in namings] + [writing[0] for writing in writings]:
                if not file.is_done:
                    file.fail(reason)
            self._namings = [naming for naming in self._namings if not naming[0].is_done]
            self._named = [named for named in self._named if not named[0][0].is_done]
            raise
        finally:
            for _, _, _, _, release in writings:
                if release is not None:
                    release()

    def _region(self) -> int:
        """Return what makes torch's threads run a function; 0 where this thread shall do it."""
        if self._has_team is None:
            self._has_team = has_team()
        return _region() if self._has_team else 0

    def _ask_alone(self, tensor: torch.Tensor) -> Four | None:
        with without_dispatch_modes(), without_transforms():
            return self._statistics.ask(tensor).numbers

    def _open(self, writings: list[_Writing]) -> tuple[list[PendingFile], list[_Content]]:
        """Open the files; returns those that can be, and what is written to them."""
        opened: list[PendingFile] = []
        contents: list[_Content] = []
        for file, address, size, _, _ in writings:
            descriptor = file.open(self._stock.pop() if self._stock else None)
            if descriptor is not None:
                header, trailer = file.frame
                opened.append(file)
                contents.append((descriptor, header, address, size, trailer))
                self._last = file
        return opened, contents

    def _do_meanwhile(self) -> None:
        """Do what can be done while files are written."""
        named, self._named = self._named, []
        for (file, source), error in named:
            self._unnamed.discard(file)
            file.end_naming(source, error)
        owed, self._owed = self._owed, []
        for chore in owed:
            chore()
        if self._last is not None and not self._stock:
            # Without room for another file the next one tells.
            with suppress(OSError):
                self._stock.append(self._last.open_ahead())


def has_team() -> bool:
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
def _region() -> int:
    """Return the address of what makes torch's threads run a function; 0 where it is not known."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        # It is loaded; this finds the OpenMP that it was linked with, of perhaps several.
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0
