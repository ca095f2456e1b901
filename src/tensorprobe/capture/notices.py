"""What the user is told during a run, each thing once, or a few times where it differs by step."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tensorprobe.config import Config
from tensorprobe.store.runs import named_steps

__all__ = ["Notices", "no_dump_notice", "no_listed_call_notice", "steps_left_notice"]

_LOG = logging.getLogger("tensorprobe")
# What goes wrong in each of many thousand steps is known after so many.
_OFTEN = 3


def no_dump_notice(dump_path: Path | None, reason: str) -> str:
    """Return what to tell when there is no folder for the dump."""
    return (
        f"no dump can be written into {dump_path}: {reason}; the run goes on without one; choose "
        "another dump_path"
    )


def no_listed_call_notice(config: Config) -> str:
    """Return what to tell when nothing of a step was recorded; empty where no call is named."""
    if not config.list or config.level == "debug" or config.task == "structure":
        return ""
    return (
        f"a step has no call that list names, {', '.join(config.list)}: nothing of it is recorded; "
        "construct.json has the names of all calls at the levels L0 and mix"
    )


def steps_left_notice(left: Sequence[int], last: int, captured: int) -> str:
    """Return what to tell when a run has ended before steps that were wanted.

    >>> steps_left_notice([7], 2, 0)
    'step 7 was wanted and never came: the last one was step 2; nothing was captured'

    Args:
        left: the steps that have not come.
        last: the last one that has.
        captured: how many were captured.
    """
    were = "was" if len(left) == 1 else "were"
    nothing = "" if captured else "; nothing was captured"
    return (
        f"{named_steps(left)} {were} wanted and never came: the last one was step {last}{nothing}"
    )


class Notices:
    """Remembers what it has told."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._kinds: Counter[str] = Counter()

    def tell(self, message: str) -> None:
        """Tell something; a mistake in a training loop is made again and again."""
        if message not in self._told:
            self._told.add(message)
            _LOG.warning("%s", message)

    def tell_of_step(self, message: str) -> None:
        """Tell something of one step; no more once it was told of several, whatever its numbers."""
        kind = re.sub(r"\d+", "0", message)
        self._kinds[kind] += 1
        if self._kinds[kind] < _OFTEN:
            _LOG.warning("%s", message)
        elif self._kinds[kind] == _OFTEN:
            _LOG.warning("%s; the same of later steps is told no more", message)
