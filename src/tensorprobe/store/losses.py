"""What a dump lacks: from the first loss on in its list on the disk, at its end inside it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tensorprobe.store.error_log import ErrorLog

__all__ = ["Losses"]

# A disk that stays full fails at every record; the first hundred say where it began.
_LISTED = 100


class Losses:
    """What one writer could not write.

    Attributes:
        count: how much that is.
        log: the list on the disk, once its room is taken.
    """

    def __init__(self) -> None:
        self.count = 0
        self.log: ErrorLog | None = None
        self._first: list[str] = []

    def take_room(self, folder: Path) -> None:
        """Open the list, before the first record takes room from it."""
        if self.log is None:
            # Without it the trouble is in memory, and told.
            with contextlib.suppress(OSError):
                self.log = ErrorLog(folder)

    def note(self, problem: str) -> None:
        """Count a loss."""
        self.count += 1
        if len(self._first) < _LISTED:
            self._first.append(problem)

    def listed(self) -> list[str]:
        """Return the first losses, and how many more there are."""
        more = self.count - len(self._first)
        return [*self._first, f"and {more} more"] if more else self._first
