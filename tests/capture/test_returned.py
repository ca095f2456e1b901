"""What a running function returns is heard, and nothing of it stays behind."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from tensorprobe.capture.returned import hear_return

Heard = list[tuple[Any, bool]]


def listen(heard: Heard) -> bool:
    """Listen to the caller's return."""
    return hear_return(sys._getframe(1), lambda result, is_there: heard.append((result, is_there)))


@pytest.fixture(autouse=True)
def nobody_traces(request: pytest.FixtureRequest) -> Any:
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


def test_a_result_without_a_name_is_heard() -> None:
    heard: Heard = []

    def work(x: int) -> int:
        try:
            return x + 1
        finally:
            assert listen(heard)
            abs(x)
            sorted([3, 1], key=lambda value: -value)

    assert work(1) == 2
    assert heard == [(2, True)]
    assert sys.gettrace() is None


def test_an_exception_is_no_result() -> None:
    heard: Heard = []

    def work() -> None:
        listen(heard)
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        work()
    assert heard == [(None, False)]
    assert sys.gettrace() is None


def test_somebody_elses_trace_keeps_its_place() -> None:
    heard: Heard = []

    def work() -> int:
        assert not listen(heard)
        return 1

    def their_trace(frame: FrameType, event: str, value: Any) -> None:
        return None

    sys.settrace(their_trace)
    try:
        assert work() == 1
        assert sys.gettrace() is their_trace
    finally:
        sys.settrace(None)
    assert heard == []
