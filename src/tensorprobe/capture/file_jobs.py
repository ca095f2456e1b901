"""The files that a team writes: which of them now, and which wait for company.

    jobs of a record ─► choose ─► now: written, several at the same time
                                  copied: they wait, in memory of our own

The system lets one thread into a file. So one that comes alone waits for the next: to copy its data
takes a third of the time of writing them, or less, and the tensor may change then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from tensorprobe.store.pending_file import PendingFile

__all__ = ["Borrow", "FileJob", "WaitingFiles"]

Borrow = Callable[[int], "tuple[int, Callable[[], None]] | None"]
"""Gives memory of a size: its address, and what gives it back; None where there is no room."""

# Two threads have about as much to do when all files are this many times the largest.
_BALANCED = 1.6
# Below so many bytes a file is written before its data would be copied.
_SMALL = 1 << 16
# What waits is lost with the process, and holds up the records that come after it.
_MOST_WAITING = 7
_LONGEST_WAIT = 16


class FileJob:
    """A file to be written with what lies at an address, the elements of a tensor in C order.

    Args:
        file: the promised file.
        address: of the elements.
        size: of them, in bytes.
        tensor: whose they are.
        release: gives the memory back, where that is our own.

    Attributes:
        links: second names of the file, to be given once it is there.
        target: where the elements are copied to, and what gives that back.
    """

    __slots__ = ("_release", "address", "file", "links", "size", "target", "tensor")

    def __init__(
        self,
        file: PendingFile,
        address: int,
        size: int,
        tensor: torch.Tensor,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.file = file
        self.address = address
        self.size = size
        self.tensor: torch.Tensor | None = tensor
        self._release = release
        self.links: list[PendingFile] = []
        self.target: tuple[int, Callable[[], None]] | None = None

    @property
    def has_own_memory(self) -> bool:
        """Whether the tensor may change before it is written."""
        return self._release is not None

    def move(self) -> None:
        """Go on with the copy."""
        if self.target is not None:
            (self.address, self._release), self.target = self.target, None

    def content(self) -> tuple[str, bytes, int, int, bytes]:
        """Return what is written: path, header, address and size, trailer."""
        header, trailer = self.file.frame
        return self.file.path, header, self.address, self.size, trailer

    def free(self) -> None:
        """Let go of the tensor, and of memory of our own."""
        self.tensor = None
        self.move()
        release, self._release = self._release, None
        if release is not None:
            release()


class WaitingFiles:
    """Files that wait for others.

    Args:
        borrow: gives the memory that they wait in.
    """

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._waiting: list[FileJob] = []
        self._waited = 0

    @property
    def jobs(self) -> list[FileJob]:
        """Those that wait."""
        return list(self._waiting)

    def is_overdue(self) -> bool:
        """Whether what waits should wait no longer; asked at the end of every record."""
        self._waited += bool(self._waiting)
        return self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        return self._waited >= _LONGEST_WAIT or len(self._waiting) >= _MOST_WAITING

    def choose(self, jobs: list[FileJob]) -> tuple[list[FileJob], list[FileJob]]:
        """Return which files are written now, and which of the jobs have a copy made to wait in."""
        candidates = self._waiting + jobs
        total = sum(job.size for job in candidates)
        largest = max((job.size for job in candidates), default=0)
        if total >= _BALANCED * largest or self._is_overdue:
            return candidates, []
        now: list[FileJob] = []
        copied: list[FileJob] = []
        for job in jobs:
            if job.has_own_memory:
                copied.append(job)
            elif job.size < _SMALL or (target := self._borrow(job.size)) is None:
                now.append(job)
            else:
                job.target = target
                copied.append(job)
        return now, copied

    def add(self, jobs: Iterable[FileJob]) -> None:
        """Let jobs wait whose data were copied."""
        for job in jobs:
            if job.file.is_done:
                # Somebody could not wait.
                job.free()
            else:
                job.move()
                job.tensor = None
                self._waiting.append(job)

    def prune(self) -> None:
        """Let go of those that are written, or lost."""
        kept = [job for job in self._waiting if not job.file.is_done]
        if len(kept) < len(self._waiting):
            self._waited = 0
        self._waiting = kept
