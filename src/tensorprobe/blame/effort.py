"""How much may be done for an answer: everything, or what a comparison has time for.

Time is what was computed, here and in the processes that replay calls, so that an answer does not
depend on what else the machine does.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

__all__ = ["Effort", "computing_time", "note_computing"]

_elsewhere = 0.0


def computing_time() -> float:
    """Return the seconds that this process has computed, and others for it."""
    return time.process_time() + _elsewhere


def note_computing(seconds: float) -> None:
    """Count what another process has computed for this one."""
    global _elsewhere
    _elsewhere += seconds


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be done for an answer.

    Attributes:
        calls: how many calls of a rank are looked at, from the first that differs on; None: all.
        seconds: how long calls of a rank are replayed, in seconds of computing; None: until all is
            done.
        settles_doubts: whether only those calls are replayed whose distances leave a doubt, so
            that most answers need no replay.
        timeout: how many seconds the replay of one call may take.
        memory: how many GiB the process that replays them may take; None: what there is.
    """

    calls: int | None = None
    seconds: float | None = None
    settles_doubts: bool = False
    timeout: float = 60.0
    memory: float | None = None

    def end_of_replays(self) -> float:
        """Return when replays that begin now end, on the clock of `computing_time`."""
        return math.inf if self.seconds is None else computing_time() + self.seconds
