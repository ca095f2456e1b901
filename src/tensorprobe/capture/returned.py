"""Hear what a function returns that is running already, and whose result has no name in it.

    its frame ─► a trace of this frame alone ─► its return ─► no trace any more

A debugger or a coverage tool that traces in this way keeps its place: then nothing is heard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tensorprobe.capture.code_patch import hide_from_dynamo

__all__ = ["hear_return"]

OnReturn = Callable[[Any, bool], None]
"""Gets the result, and whether there is one; there is none where an exception came instead."""


def hear_return(frame: FrameType, on_return: OnReturn) -> bool:
    """Have something called when a function that is running in this thread returns.

    To be used on the last steps of the function: all that runs until then runs a little slower.

    Args:
        frame: of the function.
        on_return: called in the moment of the return; must not raise.

    Returns:
        Whether it will be; not if somebody else traces this thread.
    """
    if sys.gettrace() is not None:
        return False
    tell = hide_from_dynamo(on_return)
    is_raised = False

    def follow(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal is_raised
        if event == "exception":
            is_raised = True
        elif event == "return":
            # Now: what is told must not be traced, and an exception ends a trace anyway.
            sys.settrace(None)
            frame.f_trace = None
            tell(None if is_raised else value, not is_raised)
            return None
        return follow

    frame.f_trace_lines = False
    frame.f_trace = follow
    sys.settrace(_ignore)
    return True


def _ignore(frame: FrameType, event: str, value: Any) -> None:
    """Trace no function that is called meanwhile."""
