"""The work that a piece of code does, counted: a clock tells more about the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_most_lines(limit: int) -> Iterator[None]:
    """Fail at the line of Python that is one too many; so a loop without an end fails as well."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            assert count <= limit, f"more than {limit} lines of Python ran; here {frame.f_code}"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
