"""Measure the host's tensors of a record and write their data at the same time.

    begin: tensors whose record is still to be made
    run    ─► torch's threads measure and write them
              meanwhile: names of files that are written ─► what is owed ─► the record is made,
              with the tensors that were begun, and others
    its end ─► those others are measured and written

Where torch computes on every core, its threads wait there for the next operation: no other thread
would be let in, so they do it themselves. A record's values do not change before it is made.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.capture.file_jobs import SMALL, Borrow, FileJob, WaitingFiles
from tensorprobe.capture.transforms import without_transforms
from tensorprobe.new_file import HiddenFile
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

__all__ = ["Teamwork"]

# Each file is open until the block ends, and a process has a limited number of them.
_MOST_FILES = 8
# So many files are usually written at a time.
_STOCK = 2

# Plain tuples: a step has hundreds of each.
_Array = tuple[int, int, str]
"""What is measured: the address of elements without a gap, how many, of what type."""
_Awaited = tuple[Measured, torch.Tensor, object]
"""Who waits for its numbers: those of a tensor, and what the array belongs to."""
_Naming = tuple[PendingFile, "PendingFile | None"]
"""A file that gets its name; the other is the one whose second name it is."""

_born = this_process()


class Teamwork:
    """What is to be measured and written by the end of a `with` block, or of `run`.

    Args:
        kernel: the compiled kernel.
        lock: held in the block, which may be entered again.
        statistics: measures what the kernel does not.
        forget: told when the numbers that were promised will not come.
        borrow: gives memory for copies.

    Attributes:
        is_running: whether a record is being made whose numbers are not there yet.
    """

    def __init__(
        self,
        kernel: Any,
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
        borrow: Borrow,
    ) -> None:
        self._measure_and_write = kernel.measure_and_write
        self._lock: Any = lock
        self._statistics = statistics
        self._forget = forget
        self.is_running = False
        self._jobs: list[FileJob] = []
        self._waiting = WaitingFiles(borrow)
        self._asked: list[tuple[_Array, _Awaited]] = []
        # What is being done.
        self._jobs_now: list[FileJob] = []
        self._awaited_now: list[_Awaited] = []
        # Files that have no name yet.
        self._unnamed: set[PendingFile] = set()
        self._links: list[_Naming] = []
        # Of files that are written: there is time for it while the next one is.
        self._namings: list[_Naming] = []
        # Those that got their names, or an error.
        self._named: deque[tuple[_Naming, int]] = deque()
        self._owed: list[Callable[[], None]] = []
        # Files of the next tensors, open, and one that tells where.
        self._stock: list[HiddenFile] = []
        self._stocks_up = True
        self._last: PendingFile | None = None
        self._settlings = 0
        # Whether an interrupt may have left a file that nobody knows.
        self._is_torn = False
        self._has_team: bool | None = None

    @staticmethod
    def make(
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
        borrow: Borrow,
    ) -> Teamwork | None:
        """Return one, None where there is nothing to do it with."""
        kernel = host_kernel()
        if not hasattr(kernel, "measure_and_write"):
            return None
        return Teamwork(kernel, lock, statistics, forget, borrow)

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
            # Also inside `run`: a call that is made there may change what it was given.
            self._finish()
        finally:
            self._lock.release()

    def begin(
        self,
        tensor: torch.Tensor,
        address: int,
        size: int,
        frame: tuple[bytes, bytes],
        *,
        is_measured: bool,
    ) -> None:
        """Have `run` write the data of a tensor whose file is promised while it does.

        Args:
            tensor: the tensor.
            address: of its elements, in C order.
            size: of them, in bytes.
            frame: what the file will have before and after them.
            is_measured: whether its numbers are known.
        """
        # Where files go, the first of them tells.
        if self._last is None or size < SMALL or len(self._jobs) >= _MOST_FILES:
            return
        if any(job.tensor is tensor for job in self._jobs):
            return
        job = FileJob(None, frame, address, size, tensor)
        self._jobs.append(job)
        if not is_measured and (plan := plan_on_host(tensor)) is not None:
            job.measured = self._await(tensor, plan)

    def run(self, make: Callable[[], None]) -> None:
        """Make a record while what was begun is done; the rest of it is done then."""
        with self:
            if self.is_running or not self._jobs:
                make()
            else:
                self._take_jobs(make)

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
        self._unnamed.add(file)
        begun = self._begun(tensor)
        if begun is not None and begun.file is None and begun.frame == file.frame:
            begun.file = file
            return
        self._jobs.append(FileJob(file, file.frame, address, size, tensor, release))
        if len(self._jobs) >= _MOST_FILES:
            self._finish()

    def link(self, file: PendingFile, source: PendingFile) -> bool:
        """Have a file become another one's second name, if that is done or is done here."""
        if not source.is_done and source not in self._unnamed:
            return False
        self._links.append((file, source))
        return True

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Have a tensor measured; its numbers are there when the block ends."""
        begun = self._begun(tensor)
        if begun is not None and begun.measured is not None:
            return begun.measured
        # Its data may just have been put in order, to be written.
        last = self._jobs[-1] if self._jobs else None
        ordered = last.address if last is not None and last.tensor is tensor else None
        plan = plan_on_host(tensor, ordered)
        return self._statistics.ask(tensor) if plan is None else self._await(tensor, plan)

    def owe(self, chore: Callable[[], None]) -> None:
        """Have something done while a file is written, at the latest by `settle`."""
        self._owed.append(chore)

    def empty(self) -> None:
        """Write all that waits: somebody needs the memory."""
        with self._lock:
            self._finish()
            while rest := [job for job in self._waiting.jobs if job not in self._jobs_now]:
                self._work(rest)
                self._finish()

    def settle(self) -> None:
        """Give all files that are written their names, and do what is owed."""
        with self._lock:
            self._settlings += 1
            self._do_now()
            self.empty()
            try:
                while self._namings or self._named or self._owed:
                    self._work([])
            finally:
                stock, self._stock = self._stock, []
                for hidden in stock:
                    hidden.discard()
            # What is being done goes on, and its files are no longer wanted.
            self._is_torn |= self.is_running

    def sweep(self) -> None:
        """Remove what an interrupt has left; every file is written or lost."""
        if self._is_torn and not self.is_running and self._last is not None:
            self._is_torn = False
            self._last.remove_hidden()

    def _begun(self, tensor: torch.Tensor) -> FileJob | None:
        """Return what is being done with a tensor."""
        for job in self._jobs_now:
            if job.tensor is tensor:
                return job
        return None

    def _await(self, tensor: torch.Tensor, plan: tuple[int, int, str, object]) -> Measured:
        measured = Measured(None)
        self._asked.append((plan[:3], (measured, tensor, plan[3])))
        return measured

    def _finish(self) -> None:
        """Measure everything now, and write or copy it."""
        while self._jobs or self._asked or (not self.is_running and self._waiting.is_overdue()):
            count = len(self._jobs)
            self._take_jobs()
            if self.is_running and len(self._jobs) >= count > 0:
                # Too many files are open, and some of them are closed when `run` ends.
                break
        links, self._links = self._links, []
        for file, source in links:
            # Its first name comes first.
            is_early = source is not None and self._is_on_its_way(source)
            (self._links if is_early else self._namings).append((file, source))

    def _is_on_its_way(self, file: PendingFile) -> bool:
        if file.is_done:
            return False
        return any(job.file is file for job in (*self._waiting.jobs, *self._jobs_now))

    def _take_jobs(self, make: Callable[[], None] | None = None) -> None:
        """Do what has come together, and `make` meanwhile."""
        jobs, self._jobs = self._jobs[:_MOST_FILES], self._jobs[_MOST_FILES:]
        if self.is_running:
            self._work(jobs)
        elif self._region():
            self._work(*self._waiting.choose(jobs), make)
        else:
            self._work(self._waiting.jobs + jobs, [], make)

    def _work(
        self,
        jobs: list[FileJob],
        copied: Sequence[FileJob] = (),
        make: Callable[[], None] | None = None,
    ) -> None:
        """Write some files, copy the data of others, and measure what is to be measured."""
        outer = self._jobs_now, self._awaited_now, self.is_running
        asked, self._asked = self._asked, []
        awaited = [waits for _, waits in asked]
        self._namings = [naming for naming in self._namings if not naming[0].is_done]
        namings = list(self._namings)
        failures: list[Exception] = []
        try:
            self._jobs_now = [*outer[0], *jobs, *copied]
            opened = self._open(jobs)
            self._jobs_now = [*outer[0], *opened, *copied]
            self._awaited_now = [*outer[1], *awaited]
            self.is_running = True
            found, written = self._measure_and_write(
                # The team is busy with what is around this.
                0 if outer[2] else self._region(),
                [array for array, _ in asked],
                [job.content() for job in opened],
                [(job.target[0], job.address, job.size) for job in copied if job.target],
                [file.naming(source) for file, source in namings],
                partial(self._do_meanwhile, namings, make, failures),
            )
            for ((_, count, name), (measured, tensor, _)), numbers in zip(
                asked, found, strict=True
            ):
                measured.numbers = numbers_of(numbers, count, name) or self._ask_alone(tensor)
            for job, error in zip(opened, written, strict=True):
                if (file := job.end(error)) is not None:
                    self._namings.append((file, None))
            self._waiting.add(copied)
        except BaseException as err:
            self._is_torn |= not isinstance(err, Exception)
            self._forget()
            reason = err if isinstance(err, Exception) else InterruptedError("it was interrupted")
            for job in [*jobs, *copied]:
                job.rescue(reason)
            # Their record may be made.
            self._measure_alone(awaited)
            raise
        finally:
            self._jobs_now, self._awaited_now, self.is_running = outer
            self._waiting.prune()
        if failures:
            raise failures[0]

    def _region(self) -> int:
        """Return what makes torch's threads run a function; 0 where this thread shall do it."""
        if self._has_team is None:
            self._has_team = has_team()
        return _region() if self._has_team else 0

    def _measure_alone(self, awaited: list[_Awaited]) -> None:
        for measured, tensor, _ in awaited:
            if measured.numbers is None:
                measured.numbers = self._ask_alone(tensor)

    def _ask_alone(self, tensor: torch.Tensor) -> Four | None:
        with without_dispatch_modes(), without_transforms():
            return self._statistics.ask(tensor).numbers

    def _open(self, jobs: list[FileJob]) -> list[FileJob]:
        """Open the files; returns those that can be, the others are lost or come back."""
        opened: list[FileJob] = []
        for number, job in enumerate(jobs):
            place = job.file or self._last
            assert place is not None, "begun after the first"
            try:
                job.hidden = self._stock.pop() if self._stock else place.open_hidden()
            except OSError as err:
                is_crowded = err.errno in (errno.EMFILE, errno.ENFILE)
                self._stocks_up &= not is_crowded
                if is_crowded and (opened or self.is_running):
                    # There is room once those are closed. What was begun is promised to nobody.
                    waiting = self._waiting.jobs
                    left = [late for late in jobs[number:] if late.file and late not in waiting]
                    self._jobs = left + self._jobs
                    break
                job.lose(err)
                continue
            opened.append(job)
            self._last = place
        return opened

    def _do_meanwhile(
        self,
        namings: list[_Naming],
        make: Callable[[], None] | None,
        failures: list[Exception],
        errors: list[int],
    ) -> None:
        """Do what can be done while files are written, whose writing no failure here ends."""
        self._named.extend(zip(namings, errors, strict=True))
        self._namings = [naming for naming in self._namings if naming not in namings]
        self._end_namings()
        owed, self._owed = self._owed, []
        for work in (*owed, self._fill_stock, make):
            try:
                if work is not None:
                    work()
            except Exception as err:  # noqa: BLE001 - raised when the files are written
                failures.append(err)

    def _fill_stock(self) -> None:
        settlings = self._settlings
        # Without room for another file the next one tells.
        with suppress(OSError):
            while self._stocks_up and self._last is not None and len(self._stock) < _STOCK:
                hidden = self._last.open_hidden()
                if self._settlings != settlings:
                    # It is over, said a signal's handler.
                    hidden.discard()
                    return
                self._stock.append(hidden)

    def _end_namings(self) -> None:
        while self._named:
            named = self._named[0]
            (file, source), error = named
            if not file.is_done:
                file.end_naming(source, error)
            self._unnamed.discard(file)
            # A signal's handler may have been here meanwhile.
            if self._named and self._named[0] is named:
                self._named.popleft()

    def _do_now(self) -> None:
        """Do what is on its way once more: whoever asks cannot wait, as in a signal's handler."""
        self._end_namings()
        for job in self._jobs_now:
            if job.file is not None and not job.file.is_done:
                job.file.write(view_place(job.address, job.size))
        self._measure_alone(self._awaited_now)


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
