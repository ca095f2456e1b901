"""What an online check says: a line for each failure, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["FailureLine", "SummaryLines", "describe_failure", "summary_lines"]


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
