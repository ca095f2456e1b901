"""Measure the host's tensors of a record and write their data at the same time.

    values of a record ─► files to write, tensors to measure ─► the end of the block
    its end ─► torch's threads do both; meanwhile: second names of other files, and what is owed

Where torch computes on every core, its threads wait there for the next operation: no other thread
would be let in, so they do it themselves. A tensor may change as soon as the block has ended.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch

from tensorprobe.capture.dispatch_modes import without_dispatch_modes
from tensorprobe.capture.file_jobs import Borrow, FileJob, WaitingFiles
from tensorprobe.capture.transforms import without_transforms
from tensorprobe.interrupts import uninterrupted
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

# So much of a record is kept back before it is written.
_MOST_FILES = 8

# Plain tuples: a step has hundreds of each.
_Array = tuple[int, int, str]
"""What is measured: the address of elements without a gap, how many, of what type."""
_Awaited = tuple[Measured, torch.Tensor, object]
"""Who waits for its numbers: those of a tensor, and what the array belongs to."""
_Link = tuple[PendingFile, PendingFile]
"""A second name, and the file whose second name it is."""

_born = this_process()


class Teamwork:
    """What is to be measured and written by the end of a `with` block.

    Args:
        kernel: the compiled kernel.
        lock: held in the block, which may be entered again.
        statistics: measures what the kernel does not.
        forget: told when the numbers that were promised will not come.
        borrow: gives memory for copies.
        fail: told in words what could not be done of what is owed, and the error.

    Attributes:
        is_running: whether files are being written.
    """

    def __init__(
        self,
        kernel: Any,
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
        borrow: Borrow,
        fail: Callable[[str, Exception], None],
    ) -> None:
        self._measure_and_write = kernel.measure_and_write
        self._lock: Any = lock
        self._statistics = statistics
        self._forget = forget
        self._fail = fail
        self.is_running = False
        self._jobs: list[FileJob] = []
        self._waiting = WaitingFiles(borrow)
        self._asked: list[tuple[_Array, _Awaited]] = []
        # What is being done.
        self._jobs_now: list[FileJob] = []
        self._awaited_now: list[_Awaited] = []
        # Files that are not there yet.
        self._on_their_way: dict[PendingFile, FileJob] = {}
        # Of files that are there: there is time for it while the next one is written.
        self._links: list[_Link] = []
        self._owed: list[Callable[[], None]] = []
        self._has_team: bool | None = None
        self._process = this_process()

    @staticmethod
    def make(
        lock: threading.RLock,
        statistics: StatisticsQueue,
        forget: Callable[[], None],
        borrow: Borrow,
        fail: Callable[[str, Exception], None],
    ) -> Teamwork | None:
        """Return one, None where there is nothing to do it with."""
        kernel = host_kernel()
        if not hasattr(kernel, "measure_and_write"):
            return None
        return Teamwork(kernel, lock, statistics, forget, borrow, fail)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Also inside another block: a call that is made there may change what it was given.
            self.finish()
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
        job = FileJob(file, address, size, tensor, release)
        self._jobs.append(job)
        self._on_their_way[file] = job
        if len(self._jobs) >= _MOST_FILES:
            self.finish()

    def link(self, file: PendingFile, source: PendingFile) -> bool:
        """Have a file become another one's second name, if that is done or is done here."""
        if source.is_done:
            self._links.append((file, source))
            return True
        job = self._on_their_way.get(source)
        if job is not None:
            job.links.append(file)
        return job is not None

    def ask(self, tensor: torch.Tensor) -> Measured:
        """Have a tensor measured; its numbers are there when the block ends."""
        # Its data may just have been put in order, to be written.
        last = self._jobs[-1] if self._jobs else None
        ordered = last.address if last is not None and last.tensor is tensor else None
        plan = plan_on_host(tensor, ordered)
        if plan is None:
            return self._statistics.ask(tensor)
        measured = Measured(None)
        self._asked.append((plan[:3], (measured, tensor, plan[3])))
        return measured

    def owe(self, chore: Callable[[], None]) -> None:
        """Have something done while a file is written, at the latest by `settle`."""
        self._owed.append(chore)

    def finish(self) -> None:
        """Measure everything now, and write or copy it, inside the block."""
        while self._jobs or self._asked or (not self.is_running and self._waiting.is_overdue()):
            self._take_jobs()

    def empty(self) -> None:
        """Write all that waits: somebody needs the memory."""
        with self._lock:
            self.finish()
            while rest := [job for job in self._waiting.jobs if job not in self._jobs_now]:
                self._work(rest)
                self.finish()

    def settle(self) -> None:
        """Write all files, give them their second names, and do what is owed."""
        with self._lock:
            # Whoever asks from inside cannot wait for what is on its way.
            for job in self._jobs_now:
                if not job.file.is_done:
                    job.file.write(view_place(job.address, job.size))
            self._measure_alone(self._awaited_now)
            self.empty()
            if not self.is_running:
                # Cut off by an interrupt at an odd moment: who knows what is in their memory now.
                for job in list(self._on_their_way.values()):
                    if not job.file.is_done:
                        job.file.fail(InterruptedError("it was interrupted"))
                    self._end_job(job, is_written=False)
            while self._links or self._owed:
                self._work([])

    @uninterrupted()
    def _take_jobs(self) -> None:
        jobs, self._jobs = self._jobs[:_MOST_FILES], self._jobs[_MOST_FILES:]
        try:
            if self.is_running:
                self._work(jobs)
            elif self._region():
                self._work(*self._waiting.choose(jobs))
            else:
                self._work(self._waiting.jobs + jobs)
        except BaseException:
            for job in jobs:
                if not job.file.is_done and job not in self._waiting.jobs:
                    self._end_job(job, is_written=False)
            raise

    @uninterrupted()
    def _work(self, jobs: list[FileJob], copied: Sequence[FileJob] = ()) -> None:
        """Write some files, copy the data of others, and measure what is to be measured."""
        outer = self._jobs_now, self._awaited_now, self.is_running
        asked, self._asked = self._asked, []
        links, self._links = self._links, []
        awaited = [waits for _, waits in asked]
        self._jobs_now = [*outer[0], *jobs, *copied]
        self._awaited_now = [*outer[1], *awaited]
        self.is_running = True
        try:
            found, written = self._measure_and_write(
                # The team is busy with what is around this.
                0 if outer[2] else self._region(),
                [array for array, _ in asked],
                [job.content() for job in jobs],
                [(job.target[0], job.address, job.size) for job in copied if job.target],
                [(source.path, file.path) for file, source in links],
                partial(self._do_meanwhile, links),
            )
            for ((_, count, name), (measured, tensor, _)), numbers in zip(
                asked, found, strict=True
            ):
                measured.numbers = numbers_of(numbers, count, name) or self._ask_alone(tensor)
            for job, error in zip(jobs, written, strict=True):
                self._end_job(job, is_written=not error)
            self._waiting.add(copied)
        except BaseException:
            self._forget()
            for job in [*jobs, *copied]:
                self._end_job(job, is_written=False)
            for file, source in links:
                if not file.is_done:
                    file.follow(source)
            # Their record may be made.
            self._measure_alone(awaited)
            raise
        finally:
            self._jobs_now, self._awaited_now, self.is_running = outer
            self._waiting.prune()

    def _end_job(self, job: FileJob, *, is_written: bool) -> None:
        file = job.file
        if not file.is_done:
            if is_written:
                file.end()
            else:
                # The first of its folder, or too many files are open; or it tells what is wrong.
                file.write(view_place(job.address, job.size))
        self._on_their_way.pop(file, None)
        for link in job.links:
            if file.is_lost:
                link.follow(file)
            else:
                self._links.append((link, file))
        job.free()

    def _do_meanwhile(self, links: list[_Link], errors: list[int]) -> None:
        """Do what can be done while files are written, whose writing no failure here ends."""
        for (file, source), error in zip(links, errors, strict=True):
            if error:
                # No hard links here, or the file that was there is gone.
                file.follow(source)
            else:
                file.end()
        owed, self._owed = self._owed, []
        for work in owed:
            try:
                work()
            except Exception as err:  # noqa: BLE001 - counted and told by the recorder
                self._fail("what was to be done while files are written", err)

    def _region(self) -> int:
        """Return what makes torch's threads run a function; 0 where this thread shall do it."""
        if self._has_team is None:
            self._has_team = has_team()
        # A forked child has none of the threads that there were.
        return _region() if self._has_team and in_process(self._process) else 0

    def _measure_alone(self, awaited: list[_Awaited]) -> None:
        for measured, tensor, _ in awaited:
            if measured.numbers is None:
                measured.numbers = self._ask_alone(tensor)

    def _ask_alone(self, tensor: torch.Tensor) -> Four | None:
        with without_dispatch_modes(), without_transforms():
            return self._statistics.ask(tensor).numbers


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
