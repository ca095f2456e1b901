"""Which files are written now, and which wait for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorprobe.capture.file_jobs import FileJob, WaitingFiles
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.store.pending_file import PendingFile

MEGABYTE = 1 << 20


class Jobs:
    """Makes jobs of real tensors, and memory for their copies."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self.transport = TensorTransport(budget)
        self.waiting = WaitingFiles(self.transport.borrow)
        self.lost: list[str] = []

    def make(self, size: int) -> FileJob:
        tensor = torch.zeros(size, dtype=torch.uint8)
        file = PendingFile("a", str(self.folder), f"{id(tensor)}.pt", ".pt", (b"", b""), self.lose)
        return FileJob(file, tensor.data_ptr(), size, tensor)

    def lose(self, what: str, err: Exception | None) -> None:
        self.lost.append(what)

    def end_record(self, *jobs: FileJob) -> list[FileJob]:
        now, copied = self.waiting.choose(list(jobs))
        self.waiting.add(copied)
        for job in now:
            job.file.write(b"")
        self.waiting.prune()
        return now


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, budget=64 * MEGABYTE)


def test_a_file_that_comes_alone_waits_for_the_next(jobs: Jobs) -> None:
    first, second = jobs.make(2 * MEGABYTE), jobs.make(2 * MEGABYTE)
    own = first.address
    assert jobs.end_record(first) == []
    assert first.has_own_memory and first.address != own and first.tensor is None
    assert jobs.waiting.jobs == [first]
    assert jobs.end_record(second) == [first, second]
    assert not jobs.waiting.jobs and second.address and not second.has_own_memory


def test_small_files_do_not_wait_nor_let_others_go(jobs: Jobs) -> None:
    large, small = jobs.make(4 * MEGABYTE), jobs.make(100)
    assert jobs.end_record(large) == []
    assert jobs.end_record(small) == [small]
    assert jobs.waiting.jobs == [large]


def test_two_files_of_one_record_are_written_at_once(jobs: Jobs) -> None:
    both = [jobs.make(MEGABYTE), jobs.make(MEGABYTE)]
    assert jobs.end_record(*both) == both


def test_nothing_waits_for_ever(jobs: Jobs) -> None:
    large = jobs.make(16 * MEGABYTE)
    assert jobs.end_record(large) == []
    records = 1
    while not jobs.waiting.is_overdue():
        records += 1
    assert records < 100
    assert jobs.end_record() == [large]
    assert not jobs.waiting.is_overdue()


def test_no_room_for_a_copy_means_now(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, budget=MEGABYTE)
    large = jobs.make(8 * MEGABYTE)
    assert jobs.end_record(large) == [large]


def test_a_file_that_somebody_could_not_wait_for_gives_its_memory_back(jobs: Jobs) -> None:
    job = jobs.make(2 * MEGABYTE)
    now, copied = jobs.waiting.choose([job])
    assert (now, copied) == ([], [job])
    job.file.write(b"")
    jobs.waiting.add(copied)
    assert not jobs.waiting.jobs and not job.has_own_memory
    free = jobs.transport.borrow(2 * MEGABYTE)
    assert free is not None and jobs.transport._pool.held == 2 * MEGABYTE
