"""Numbers come in the order in which they were asked for, and only when they are all there."""

from __future__ import annotations

import torch

from tensorprobe.summary.transfer import Batch, BatchLine, Transfer


def test_a_device_without_events_is_waited_for_at_the_end() -> None:
    transfer = Transfer(torch.device("cpu"), (), lambda: [torch.arange(3.0)])
    assert not transfer.has_arrived
    assert [t.tolist() for t in transfer.read()] == [[0.0, 1.0, 2.0]]


def test_batches_are_delivered_in_order_and_counted_as_a_whole() -> None:
    got: list[float] = []

    def batch(value: float) -> Batch:
        transfer = Transfer(torch.device("cpu"), (), lambda: [torch.tensor([value])])
        return Batch(transfer, lambda tensors: got.extend(tensors[0].tolist()))

    line = BatchLine()
    line.add([batch(1.0), batch(2.0)], 2)
    line.add([batch(3.0)], 1)
    line.poll()
    assert got == [] and line.delivered == 0
    line.deliver_next()
    assert got == [1.0, 2.0] and line.delivered == 2 and len(line) == 1
    line.deliver_next()
    assert got == [1.0, 2.0, 3.0] and line.delivered == 3


def test_nothing_to_send_is_no_batch() -> None:
    line = BatchLine()
    line.add([], 0)
    assert len(line) == 0
