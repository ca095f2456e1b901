"""The rows of a table on a GPU, as far as they can be seen without one: who waits, and who not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorprobe.summary.statistics import Measured
from tensorprobe.system.extensions import load_compiled

_launch = load_compiled("tensorprobe.summary._launch", "Rows")
pytestmark = pytest.mark.skipif(_launch is None, reason="built without a C compiler")


def rows() -> Any:
    assert _launch is not None
    ways = {torch.float32: (1, 256, 0, False)}
    streams: list[int] = [7]
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    asked = (lambda index: streams[0], lambda: 0, exchange)
    return _launch.Rows(ways, {}, Measured, *asked, 0, 16, 32, 8, 4096, 528, 16, 1 << 31, 64, 16)


def test_those_that_wait_are_taken_once_in_their_order() -> None:
    table = rows()
    first, second = Measured(None), Measured(None)
    table.add(first, 3)
    table.add(second, 5)
    assert table.next == 2
    waiting, counts = table.take()
    assert waiting[0] is first and waiting[1] is second and counts == [3, 5]
    assert table.take() == ([], []) and table.next == 2


def test_where_nothing_can_be_launched_python_is_asked() -> None:
    table = rows()
    table.set_stream(7)
    assert table.ask(torch.ones(4)) is None
    assert table.next == 0 and table.take() == ([], [])


def test_a_stream_is_a_number_or_none() -> None:
    table = rows()
    table.set_stream(None)
    with pytest.raises(TypeError):
        table.set_stream("seven")
