"""Bring small tables from a device to the host without making anybody wait for them.

table on the device ─► side stream, behind all streams that wrote it ─► pinned memory ─► event

ask, ask, … ─► seal: one batch on its way ─► poll: what has arrived ─► fetch: all of it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["BATCH", "Batch", "BatchLine", "DeliveryQueue", "StreamsOf", "Transfer"]

BATCH = 1024
"""So many numbers travel together: to send some off takes as long as asking for thirty."""

_side_streams: dict[torch.device, Any] = {}


class Transfer:
    """Some tensors of one device on their way to the host.

    Args:
        device: where they are.
        writers: the raw handles of the streams that write them, on a GPU.
        make: returns them; run behind all writers.
    """

    def __init__(
        self,
        device: torch.device,
        writers: Collection[int],
        make: Callable[[], Sequence[torch.Tensor]],
    ) -> None:
        self._event: Any = None
        if device.type != "cuda":
            # Other devices are waited for when the numbers are read.
            self._sources = make()
            return
        side = _side_streams.get(device)
        if side is None:
            side = _side_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        for stream in writers:
            side.wait_stream(
                torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
                if stream
                else torch.cuda.default_stream(device)
            )
        with torch.cuda.stream(side):
            # Kept until they are read, so that nobody else gets their memory.
            self._sources = make()
            self._arriving = [
                torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)
                for t in self._sources
            ]
            self._event = side.record_event()

    @property
    def has_arrived(self) -> bool:
        """Whether `read` need not wait."""
        return self._event is not None and bool(self._event.query())

    def read(self) -> list[torch.Tensor]:
        """Wait for the tensors and return them on the host."""
        if self._event is None:
            return [tensor.cpu() for tensor in self._sources]
        self._event.synchronize()
        return self._arriving


class StreamsOf:
    """Which streams of a GPU write a table; each does so behind what the table was made with.

    Args:
        device: the device, whose current stream has just filled the table.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index: int = torch.cuda.current_device() if device.index is None else device.index
        self._made = torch.cuda.current_stream(device).record_event()
        self._behind = {_current_stream(self._index)}
        self._writers: set[int] = set()

    def join(self) -> int:
        """Note that the current stream writes the table; returns its raw handle."""
        stream = _current_stream(self._index)
        if stream not in self._writers:
            self._writers.add(stream)
            if stream not in self._behind:
                torch.cuda.current_stream(self._device).wait_event(self._made)
                self._behind.add(stream)
        return stream

    def take(self) -> set[int]:
        """Return the streams that have written since the last time."""
        writers, self._writers = self._writers, set()
        return writers


def _current_stream(index: int) -> int:
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


@dataclass(frozen=True, slots=True)
class Batch:
    """Numbers that travel together, and who is told them."""

    transfer: Transfer
    deliver: Callable[[list[torch.Tensor]], None]


class BatchLine:
    """Batches in the order in which they were asked for.

    Attributes:
        delivered: how many numbers have been handed to those who asked.
    """

    def __init__(self) -> None:
        self.delivered = 0
        self._line: deque[tuple[list[Batch], int]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, batches: list[Batch], count: int) -> None:
        """Put batches that hold so many numbers at the end of the line; they are in together."""
        if batches:
            self._line.append((batches, count))

    def poll(self) -> None:
        """Deliver what has arrived, without waiting."""
        while self._line and all(batch.transfer.has_arrived for batch in self._line[0][0]):
            self.deliver_next()

    def deliver_next(self) -> None:
        """Wait for the oldest batches and deliver them."""
        batches, count = self._line.popleft()
        for batch in batches:
            batch.deliver(batch.transfer.read())
        self.delivered += count


class DeliveryQueue:
    """Numbers that are asked for one by one, travel in batches, and come in that order.

    Attributes:
        asked: how many were asked for that do not come at once.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._line = BatchLine()
        self._unsent = 0

    @property
    def delivered(self) -> int:
        """How many of those that were asked for are there, in that order."""
        return self._line.delivered

    @property
    def is_waiting(self) -> bool:
        """Whether some of those that were asked for are not there."""
        return self.asked > self._line.delivered

    def poll(self) -> None:
        """Deliver what has arrived, without waiting."""
        self._line.poll()

    def fetch(self) -> bool:
        """Wait for the oldest that are not delivered; returns whether there were any."""
        self.send()
        if not len(self._line):
            return False
        self._line.deliver_next()
        return True

    def send(self) -> None:
        """Send off what was asked for so far, though a batch is not full."""
        self._line.add(self._take_batches(), self._unsent)
        self._unsent = 0

    def _count(self) -> None:
        """Count one that was asked for, and send a batch off when it is full."""
        self.asked += 1
        self._unsent += 1
        if self._unsent == BATCH:
            self.send()

    def _take_batches(self) -> list[Batch]:
        """Return everything since the last time, on its way."""
        raise NotImplementedError
