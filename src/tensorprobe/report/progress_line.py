"""One line on a terminal that is written again and again while something is going on.

For runs in which nothing but torch and numpy need be installed; commands have rich's bars.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from tensorprobe.system.clean_text import one_line

__all__ = ["ProgressLine"]

# Seconds between two of its texts, and how long it says nothing at the beginning.
_EVERY = 0.5
_QUIET = 2.0
_WIDTH = 78


class ProgressLine:
    """One line on a terminal that says how far a check is; nothing where nobody looks."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._width = 0

    def show(self, seen: int, failed: int, name: str) -> None:
        """Say how far the check is, if that was not said just before."""
        now = time.monotonic()
        if now - self._last < _EVERY or now - self._start < _QUIET:
            return
        self._last = now
        stream = sys.stderr
        with suppress(OSError, ValueError):
            if stream is None or not stream.isatty():
                return
            text = one_line(f"{seen} operators, {failed} failed, now {name}")[:_WIDTH]
            stream.write("\r" + text.ljust(self._width))
            stream.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Take the line away, before something else is written."""
        if self._width and sys.stderr is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write("\r" + " " * self._width + "\r")
                sys.stderr.flush()
        self._width = 0
