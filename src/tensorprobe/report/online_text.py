"""What an online check says: a line while it works, one for each failure, and a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tensorprobe.clean_text import one_line

__all__ = ["FailureLine", "ProgressLine", "SummaryLines", "describe_failure", "summary_lines"]

_EVERY = 0.5
_QUIET = 2.0


class FailureLine(Protocol):
    """What is told of a call that is wrong."""

    @property
    def name(self) -> str:
        """The operator and the number of its call."""

    @property
    def operator(self) -> str:
        """The operator with its overload."""

    @property
    def direction(self) -> str:
        """Forward or backward."""

    @property
    def step(self) -> int:
        """In which step."""

    @property
    def place(self) -> str:
        """Where in the user's code."""

    @property
    def numbers(self) -> str:
        """What is wrong."""


class SummaryLines(Protocol):
    """What is told at the end."""

    @property
    def seen(self) -> int:
        """How many calls were seen."""

    @property
    def checked(self) -> int:
        """How many were judged."""

    @property
    def failed(self) -> int:
        """How many are wrong."""

    @property
    def explained(self) -> int:
        """How many miss the older rule where rounding explains it."""

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many were not judged, by reason."""

    @property
    def left_out(self) -> int:
        """How many were not to be checked."""

    @property
    def first_failure(self) -> FailureLine | None:
        """The first that is wrong."""

    @property
    def notes(self) -> Sequence[str]:
        """What else there is to say."""


def describe_failure(failure: FailureLine) -> str:
    """Return the line that tells of a failure."""
    where = f" at {failure.place}" if failure.place else ""
    return (
        f"Failed {failure.name} ({failure.operator}, {failure.direction}, step {failure.step})"
        f"{where}: {failure.numbers}"
    )


def summary_lines(report: SummaryLines, folder: str) -> list[str]:
    """Return the lines that end a check."""
    lines = [
        f"{report.seen} operators seen, {report.checked} checked, {report.failed} failed, "
        f"{sum(report.skipped.values())} skipped"
        + (f", {report.left_out} not asked for" if report.left_out else "")
    ]
    if report.explained:
        lines.append(
            f"{report.explained} miss the older rule (cosine, largest error); rounding explains it"
        )
    lines += [f"skipped {count}: {reason}" for reason, count in report.skipped.items()]
    if report.first_failure is not None:
        lines.append(f"first in the order of the run: {describe_failure(report.first_failure)}")
    elif report.checked:
        lines.append("nothing that was checked computes anything else than the CPU")
    else:
        lines.append("nothing was checked, so nothing is known")
    lines += [f"note: {note}" for note in report.notes]
    return [*lines, f"the table and the data are in {folder}"]


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
            text = one_line(f"{seen} operators, {failed} failed, now {name}")[:78]
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
