"""How much may be done for an answer: everything, or what a comparison has time for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

__all__ = ["Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be done for an answer.

    Attributes:
        calls: how many calls of a rank are looked at, from the first that differs on; None: all.
        seconds: how long calls of a rank are replayed, in seconds of computing, so that an answer
            does not depend on what else the machine does; None: until all is done.
        settles_doubts: whether only those calls are replayed whose distances leave a doubt, so
            that most answers need no replay.
    """

    calls: int | None = None
    seconds: float | None = None
    settles_doubts: bool = False

    def end_of_replays(self) -> float:
        """Return when replays that begin now end, on the clock of `time.process_time`."""
        return math.inf if self.seconds is None else time.process_time() + self.seconds
