"""The real data of one recorder's tensors: which files are on their way, and which have arrived.

    a draft ─► promise its file ─► the transport ─► settle: the draft names what is on the disk

Drafts are settled in the order in which they came, so a record may be written as soon as all
drafts that were promised before it are settled.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import torch

from tensorprobe.capture.transport import TensorTransport
from tensorprobe.dtypes import DTYPES
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.writer import DumpWriter

__all__ = ["KeptData"]


class _Draft(Protocol):
    """What of a draft is used here."""

    data_name: str | None
    file: Any


class KeptData:
    """Saves the data of drafts and tells them what became of it.

    Args:
        writer: of the dump.
        transport: brings the bytes to the disk.

    Attributes:
        promised: how many drafts were given a file so far.
        settled: how many of them know by now whether it is there.
    """

    def __init__(self, writer: DumpWriter, transport: TensorTransport) -> None:
        self._writer = writer
        self._transport = transport
        self._awaited: deque[tuple[_Draft, PendingFile]] = deque()
        self.promised = 0
        self.settled = 0

    def save(self, draft: _Draft, tensor: torch.Tensor, name: str, *, checksum: int | None) -> None:
        """Save a tensor as it is now, under its value's name."""
        files = self._writer.tensor_files
        if files is None:
            return
        shape = tuple(tensor.shape)
        file = files.promise(name, DTYPES[str(tensor.dtype)], shape, checksum=checksum)
        if file is not None:
            self._await(draft, file)
            self._transport.save(tensor, file)

    def link(self, draft: _Draft, name: str, source: PendingFile) -> None:
        """Give the data of a tensor that was saved before a second name."""
        files = self._writer.tensor_files
        file = None if files is None else files.promise_link(name, source)
        if file is not None:
            self._await(draft, file)

    def settle(self) -> None:
        """Name the files that have arrived; does not wait."""
        awaited = self._awaited
        while awaited and awaited[0][1].is_done:
            draft, file = awaited.popleft()
            draft.data_name = file.data_name
            self.settled += 1

    def settle_all(self) -> None:
        """Wait until every file has arrived or is lost."""
        if self._awaited:
            self._transport.drain()
            self.settle()
            # What is left was cut off, by Ctrl-C for one: it has no file.
            self.settled += len(self._awaited)
            self._awaited.clear()

    def _await(self, draft: _Draft, file: PendingFile) -> None:
        draft.file = file
        draft.data_name = None
        self._awaited.append((draft, file))
        self.promised += 1
