"""What a comparison found: counts, the first failure, the files, and what could not be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.compare.advise import Advice, Failure
from tensorprobe.compare.evidence import Answer
from tensorprobe.records import Gap
from tensorprobe.report.compare_columns import Mode
from tensorprobe.report.verdict_text import WORDS, Verdict

__all__ = ["ComparisonResult", "PartResult", "Tally"]


@dataclass(slots=True)
class Tally:
    """Counts rows as they are made.

    Attributes:
        counts: how many rows have which verdict.
        first_failure: the first row that fails, in the order in which the values were made.
        late_failure: the first failing gradient that stands where the run came forward.
    """

    counts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(WORDS, 0))
    first_failure: Failure | None = None
    late_failure: Failure | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self.counts.values())

    @property
    def passed(self) -> int:
        """How many values agree well enough."""
        return self.counts["passed"]

    @property
    def failed(self) -> int:
        """How many values do not."""
        return self.counts["failed"]

    @property
    def open(self) -> int:
        """Of how many values nothing can be said, such as those without data."""
        return self.counts["open"]

    @property
    def unmatched(self) -> int:
        """How many values of the candidate have no partner."""
        return self.counts["unmatched"]

    @property
    def meaningless(self) -> int:
        """How many values differ and mean nothing: nobody computed them, or reads them."""
        return self.counts["uninitialised"] + self.counts["overwritten"]

    @property
    def compared(self) -> int:
        """How many values had a partner."""
        return self.rows - self.unmatched


@dataclass(frozen=True, slots=True)
class PartResult:
    """What the comparison of one rank found.

    Attributes:
        label: which rank and step, `step0/rank1`.
        mode: tensor, statistics or md5.
        tally: how many values passed and failed.
        reference_only: how many calls and values only the reference has.
        unmatched: the first things that only one run has, the reason, and what comes nearest.
        unmatched_notes: how many such things there are.
        files: what was written.
        gaps: what the two dumps lack.
        advice: where to look first; None if none was asked for.
    """

    label: str
    mode: Mode
    tally: Tally
    reference_only: int
    unmatched: tuple[str, ...]
    unmatched_notes: int
    files: tuple[Path, ...]
    gaps: tuple[Gap, ...] = ()
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What a whole comparison found.

    Attributes:
        parts: one per pair of ranks that was compared.
        problems: ranks that are missing, could not be opened, or broke off; a line each.
        files: everything that was written.
        answer: who is at fault; None if that was not asked for.
    """

    parts: tuple[PartResult, ...]
    problems: tuple[str, ...] = ()
    extra_files: tuple[Path, ...] = field(default=())
    answer: Answer | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that was written."""
        return (*(file for part in self.parts for file in part.files), *self.extra_files)

    @property
    def failed(self) -> int:
        """How many values fail, of all ranks."""
        return sum(part.tally.failed for part in self.parts)
