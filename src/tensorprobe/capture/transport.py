"""Bring tensors' bytes, as they are now, to their files without waiting for disk or device.

    host:    where torch uses every core, the caller writes the file straight from the tensor, or
             has its pool do so
             else the bytes are copied into a buffer ─► a thread writes the file
    device:  a copy on a stream of its own into pinned buffers ─► a thread waits for it and writes

The buffers are those of one pool with a budget. Where it is used up, a tensor on the host is
written at once by the caller, who could only wait otherwise; a tensor on a device waits for room.

Why the caller writes: torch's threads share the work of an operation evenly and wait for the
slowest, so a thread that writes on one of their cores stops them all, and the copy comes on top.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from tensorprobe.capture.host_write_pool import HostWritePool
from tensorprobe.store.background import BackgroundWriter, Buffer, BufferPool
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.tensor_bytes import contiguous_bytes
from tensorprobe.summary.host import place_of, to_host, view_place
from tensorprobe.system.cores import count_cores

__all__ = ["Lane", "TensorTransport"]

# A large tensor leaves its device in parts of this size, so that the first is written while the
# last is copied, and no tensor is too large for the budget.
_PART = 1 << 25
# Copies of our own on one device that may wait for their way out; beyond it the device's other
# work waits for the copy instead.
_MOST_PRIVATE = 1 << 26


class Lane(Protocol):
    """How the bytes of one device's tensors reach buffers on the host."""

    def allocate(self, size: int) -> tuple[Any, Any]:
        """Make host memory that this device copies into well: its owner and its bytes."""

    def begin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's bytes on its device in C order, to be copied from now on."""

    def copy(self, source: torch.Tensor, owner: Any) -> Callable[[], None]:
        """Begin to copy bytes to what `allocate` made; returns what waits for their arrival."""

    def end(self) -> None:
        """Keep the tensor's later changes, and its end, from the copies that were begun."""


class TensorTransport:
    """Saves tensors into promised files.

    Args:
        budget: the most bytes in memory on their way to the disk.
        part: the largest piece in which a tensor leaves a device.
        has_spare_core: whether a thread that writes takes nothing from the run; by default that is
            found out, from torch's threads and the cores of this process.
    """

    def __init__(
        self, budget: int, *, part: int = _PART, has_spare_core: bool | None = None
    ) -> None:
        self._pool = BufferPool(budget)
        self._part = min(part, self._pool.largest)
        self._writer = BackgroundWriter()
        self._lanes: dict[torch.device, Lane | None] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._has_spare_core = has_spare_core
        self._cores = count_cores()

    def save(
        self,
        tensor: torch.Tensor,
        file: PendingFile,
        pool: HostWritePool | None = None,
        laid: torch.Tensor | None = None,
    ) -> None:
        """Take the bytes of a plain tensor as they are at this moment; the file comes soon.

        Args:
            tensor: the tensor.
            file: where they go.
            pool: writes what the caller would write.
            laid: the tensor with its axes in the order in which its elements are written, where
                that is another one; for one on the host.
        """
        device = tensor.device
        if device.type != "cpu" and tensor.numel():
            lane = self._lane(device)
            if lane is not None:
                if pool is not None:
                    # It may have the memory that this waits for.
                    pool.empty()
                self.save_through(lane, tensor, file)
                return
        laid = tensor if laid is None else laid
        place = self.place_to_write_from(laid)
        if place is None:
            self._save_host(tensor, laid, file, pool)
        elif pool is None:
            file.write(view_place(*place))
        else:
            pool.write(file, *place, tensor)

    def place_to_write_from(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the address and size of a tensor's bytes if the caller writes them from there."""
        if self.writes_aside():
            return None
        return place_of(tensor)

    def borrow(self, size: int) -> tuple[int, Callable[[], None]] | None:
        """Return the address of memory, and what gives it back; None where there is no room.

        Half of the budget is for whoever waits for room.
        """
        if self._pool.used + size > self._pool.budget // 2:
            return None
        buffer = self._pool.take(size) if size <= self._pool.largest else None
        if buffer is None:
            return None
        return buffer.memory.ctypes.data, partial(self._pool.give, buffer)

    def save_through(self, lane: Lane, tensor: torch.Tensor, file: PendingFile) -> None:
        """Take the bytes of a plain tensor that has some, by way of a lane."""
        # One at a time: a lane's stream serves one tensor after the other.
        with self._lock, torch._C.DisableTorchFunction():
            try:
                source = lane.begin(tensor)
            except Exception as err:  # noqa: BLE001 - told as the file's end
                file.fail(err)
                return
            try:
                self._copy_parts(lane, source, file)
            finally:
                lane.end()

    def drain(self) -> None:
        """Return when every file is on the disk or lost."""
        self._cores = count_cores()
        self._writer.drain()

    def release(self) -> None:
        """Give all memory back; the next tensor takes some again."""
        # A forked child has the buffers but none of the threads, one of which may hold the lock.
        if os.getpid() == self._process:
            self._writer.drain()
            self._pool.clear()

    def _save_host(
        self,
        tensor: torch.Tensor,
        laid: torch.Tensor,
        file: PendingFile,
        pool: HostWritePool | None,
    ) -> None:
        size = tensor.numel() * tensor.element_size()
        buffer = self._pool.take(size) if size <= self._pool.largest else None
        if buffer is None:
            file.write(contiguous_bytes(to_host(laid)))
            return
        memory = buffer.memory[:size]
        # By torch, whose threads share it.
        torch.from_numpy(memory).view(laid.dtype).view(laid.shape).copy_(laid.detach())
        if self.writes_aside():
            self._writer.submit(partial(self._write, file, memory, buffer))
        else:
            # It did not lie in order. Touching new memory would cost as much as writing it.
            if pool is None:
                self._write(file, memory, buffer)
            else:
                give = partial(self._pool.give, buffer)
                pool.write(file, memory.ctypes.data, size, tensor, give)

    def writes_aside(self) -> bool:
        """Whether a thread of our own writes what lies on the host."""
        if self._has_spare_core is not None:
            return self._has_spare_core
        # Asked each time: a run may change it.
        return torch.get_num_threads() < self._cores

    def _write(self, file: PendingFile, memory: Any, buffer: Buffer) -> None:
        try:
            file.write(memory.data)
        finally:
            self._pool.give(buffer)

    def _copy_parts(self, lane: Lane, source: torch.Tensor, file: PendingFile) -> None:
        size = source.numel()
        starts = range(0, size, self._part)
        file.expect_parts(len(starts))
        for number, start in enumerate(starts):
            try:
                self._copy_part(lane, source[start : start + self._part], start, size, file)
            except BaseException as err:
                # Whatever kept the rest back, the file must come to its end.
                for left in starts[number:]:
                    job = partial(
                        file.write_part, left, b"", is_last=False, wait=partial(_raise, err)
                    )
                    self._writer.submit(job)
                if not isinstance(err, Exception):
                    raise
                return

    def _copy_part(
        self, lane: Lane, part: torch.Tensor, start: int, size: int, file: PendingFile
    ) -> None:
        count = part.numel()
        buffer = self._pool.take(count, lane.allocate, wait=True)
        assert buffer is not None, "a part fits into the budget"
        try:
            wait = lane.copy(part, buffer.owner)
        except BaseException:
            self._pool.give(buffer)
            raise
        self._writer.submit(partial(self._write_part, file, start, count, size, wait, buffer))

    def _write_part(
        self,
        file: PendingFile,
        start: int,
        count: int,
        size: int,
        wait: Callable[[], None],
        buffer: Buffer,
    ) -> None:
        try:
            content = buffer.memory[:count].data
            file.write_part(start, content, is_last=start + count == size, wait=wait)
        finally:
            self._pool.give(buffer)

    def _lane(self, device: torch.device) -> Lane | None:
        with self._lock:
            if device not in self._lanes:
                self._lanes[device] = _StreamLane.of(device)
            return self._lanes[device]


def _raise(err: BaseException) -> None:
    raise RuntimeError(f"it could not be copied from its device ({err})") from err


class _StreamLane:
    """Copies from a device with streams into pinned memory, beside the device's other work."""

    def __init__(self, device: torch.device, streams: Any) -> None:
        self._device = device
        self._streams = streams
        self._side = streams.Stream(device=device)
        self._source: torch.Tensor | None = None
        self._is_private = False
        # Bytes of our own copies that are still on their way.
        self._private = 0
        self._lock = threading.Lock()
        self._last: Any = None

    @staticmethod
    def of(device: torch.device) -> Lane | None:
        """Return the lane of a device; None where torch has no streams for it."""
        streams = getattr(torch, device.type, None)
        wanted = ("Stream", "Event", "stream", "current_stream")
        if not all(hasattr(streams, name) for name in wanted):
            return None
        return _StreamLane(device, streams)

    def allocate(self, size: int) -> tuple[Any, Any]:
        owner = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return owner, owner.numpy()

    def begin(self, tensor: torch.Tensor) -> torch.Tensor:
        streams = self._streams
        is_capturing = getattr(streams, "is_current_stream_capturing", None)
        if is_capturing is not None and is_capturing():
            raise RuntimeError("its bytes cannot be read while a CUDA graph is recorded")
        bits = tensor.detach()
        if bits.is_conj() or bits.is_neg():
            bits = bits.resolve_conj().resolve_neg()
        flat = bits.contiguous()
        self._is_private = flat.data_ptr() != tensor.data_ptr()
        if not self._is_private and self._private + _bytes_of(flat) <= _MOST_PRIVATE:
            # The training may change its tensor with its very next operation. No room for a
            # copy is no trouble: then that operation waits.
            with contextlib.suppress(RuntimeError):
                flat = flat.clone()
                self._is_private = True
        self._source = flat.reshape(-1).view(torch.uint8)
        self._last = None
        # What computes the tensor, and our copy of it, comes first.
        self._side.wait_stream(streams.current_stream(self._device))
        return self._source

    def copy(self, source: torch.Tensor, owner: Any) -> Callable[[], None]:
        count = source.numel()
        # An event that lets the waiting thread sleep.
        event = self._streams.Event(blocking=True)
        with self._streams.stream(self._side):
            owner[:count].copy_(source, non_blocking=True)
            event.record(self._side)
        self._last = event
        private = count if self._is_private else 0
        with self._lock:
            self._private += private
        return partial(self._arrive, event, private)

    def end(self) -> None:
        source, self._source = self._source, None
        if source is None or self._last is None:
            return
        # Its memory is not handed out again before the copy is over.
        source.record_stream(self._side)
        if not self._is_private:
            self._streams.current_stream(self._device).wait_event(self._last)

    def _arrive(self, event: Any, private: int) -> None:
        try:
            event.synchronize()
        finally:
            with self._lock:
                self._private -= private


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
