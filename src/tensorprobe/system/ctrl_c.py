"""What Ctrl-C does to a command of ours: it ends with one line and exit code 130, and no traceback.

    end_at_once ─► imports ─► raise_once ─► the command's work ─► end_at_once ─► Python's own end

While there is something to tidy up it is an exception, once; before and behind that, and when it is
pressed again, the process ends where it is.
"""

from __future__ import annotations

# What `signal` is made of: that looks for names of the handlers, and must itself be imported.
import _signal as plain_signal  # type: ignore[import-not-found]
import os
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from tensorprobe.system.standard_streams import complain

__all__ = [
    "INTERRUPTED",
    "end_at_once",
    "give_back",
    "handler_now",
    "raise_once",
    "set_handler",
    "was_raised",
]

INTERRUPTED = 130
"""The exit code of what was interrupted: 128 and the number of the signal, as shells have it."""


def end_at_once() -> None:
    """Let the process end where it is; there is nothing to tidy up."""
    set_handler(_end)


def raise_once() -> None:
    """Let KeyboardInterrupt be raised, so that all is tidied up; the second time ends at once."""
    set_handler(_raise)


def was_raised() -> bool:
    """Whether it has been raised since `raise_once`."""
    return handler_now() is _end


def give_back() -> None:
    """Let Python do what it does without us."""
    set_handler(plain_signal.default_int_handler)


def handler_now() -> Any:
    """Return who answers to Ctrl-C, for `set_handler`."""
    return plain_signal.getsignal(plain_signal.SIGINT)


def set_handler(handler: Any) -> None:
    """Let somebody answer to Ctrl-C, unless the program has said who does, or that nobody does."""
    ours = (plain_signal.default_int_handler, _end, _raise)
    # Handlers are the main thread's alone. What runs in the background ignores the signal.
    if threading.current_thread() is threading.main_thread() and handler_now() in ours:
        plain_signal.signal(plain_signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    complain("interrupted")
    os._exit(INTERRUPTED)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    plain_signal.signal(plain_signal.SIGINT, _end)
    sys.unraisablehook = _end_if_lost
    raise KeyboardInterrupt


def _end_if_lost(lost: sys.UnraisableHookArgs) -> None:
    """End where Python would print the exception and go on, as in a finalizer."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _end(plain_signal.SIGINT, None)
    sys.__unraisablehook__(lost)
