"""The real data of one recorder's tensors: each is written once, whatever names it has.

    a tensor ─► kept before? a second name of that file : a new file ─► the transport

A tensor on the host is written in the order in which its elements lie in memory, as torch.save
does: to put them into C order first takes longer than to write them.

A file is promised at once, and a record may name it before it is there: who debugs a crash needs
the last records. Should it be lost, the name is taken out of the record again.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import torch

from tensorprobe.capture.host_write_pool import HostWritePool
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.dtypes import DTYPES
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.writer import DumpWriter
from tensorprobe.summary.layout import memory_order
from tensorprobe.system.interrupts import uninterrupted

__all__ = ["KeptData"]


class KeptData:
    """Has the data of tensors written.

    Args:
        writer: of the dump.
        transport: brings the bytes to the disk.
    """

    def __init__(self, writer: DumpWriter, transport: TensorTransport) -> None:
        self._writer = writer
        self._transport = transport
        # Those that may still be on their way, in the order in which they were promised.
        self._awaited: deque[PendingFile] = deque()

    def keep(
        self,
        tensor: torch.Tensor,
        name: str,
        *,
        checksum: int | None = None,
        same: PendingFile | None = None,
        pool: HostWritePool | None = None,
    ) -> PendingFile | None:
        """Have a tensor written as it is now; returns its file, None if it can have none.

        Args:
            tensor: a plain tensor.
            name: its value's name.
            checksum: the CRC-32 of its bytes, where that is known.
            same: the file of this very tensor, unchanged since, if it was kept before.
            pool: writes what the caller would write.
        """
        if same is not None and not same.is_lost:
            return self.link(name, same, pool)
        files = self._writer.tensor_files
        if files is None:
            return None
        dtype, shape = DTYPES[str(tensor.dtype)], tuple(tensor.shape)
        # What a checksum is of has an order; a device puts elements in order as it copies them.
        is_free = checksum is None and files.takes_strides and tensor.is_cpu
        order = memory_order(tensor.stride(), shape) if is_free else None
        strides = None if order is None else order.strides
        # A handler that ends the capture in between would find a file that nobody writes.
        with uninterrupted() if tensor.is_cpu else nullcontext():
            file = files.promise(name, dtype, shape, strides=strides, checksum=checksum)
            if file is not None:
                self._awaited.append(file)
                laid = None if order is None else tensor.detach().permute(order.axes)
                self._transport.save(tensor, file, pool, laid)
        return file

    def link(self, name: str, same: PendingFile, pool: HostWritePool | None) -> PendingFile | None:
        """Give a file that is not lost a second name; returns that, None if it can have none.

        Args:
            name: the name of another value, the same tensor unchanged.
            same: the file.
            pool: the one that `keep` was told.
        """
        files = self._writer.tensor_files
        file = None if files is None else files.promise_link(name, same)
        if file is not None:
            self._awaited.append(file)
            if pool is None or not pool.link(file, same):
                file.follow(same)
        return file

    def poll(self) -> None:
        """Let go of the files that are written or lost, without waiting."""
        awaited = self._awaited
        while awaited and awaited[0].is_done:
            awaited.popleft()

    def fetch(self) -> None:
        """Wait until every file is written or lost."""
        if self._awaited:
            self._transport.drain()
        while self._awaited:
            file = self._awaited.popleft()
            if not file.is_done:
                # Ctrl-C, for one, came while it was written.
                file.fail(InterruptedError("its writing did not come to an end"))
