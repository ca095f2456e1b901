"""How much may be done for an answer: everything, or what a comparison has time for."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be done for an answer.

    Attributes:
        calls: how many calls of a rank are looked at, from the first that differs on; None: all.
        until: when replays end, on the clock of `time.monotonic`; None: they do not.
        settles_doubts: whether only those calls are replayed whose distances leave a doubt, so
            that most answers need no replay.
    """

    calls: int | None = None
    until: float | None = None
    settles_doubts: bool = False

    def is_over(self) -> bool:
        """Whether the time for replays has run out."""
        return self.until is not None and time.monotonic() > self.until
