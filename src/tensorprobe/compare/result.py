"""What a comparison found: counts, the first failure, the files, and what could not be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.compare.advise import Advice, Failure
from tensorprobe.compare.evidence import Answer
from tensorprobe.records import Gap
from tensorprobe.report.compare_columns import Mode

__all__ = ["ComparisonResult", "PartResult", "Tally"]


@dataclass(slots=True)
class Tally:
    """Counts rows as they are made.

    Attributes:
        rows: all rows.
        passed: values that agree well enough.
        failed: values that do not.
        open: values of which nothing can be said, such as those without data.
        unmatched: values of the candidate without a partner.
        first_failure: the first row that fails, in the order in which the values were made.
        late_failure: the first failing gradient that stands where the run came forward.
    """

    rows: int = 0
    passed: int = 0
    failed: int = 0
    open: int = 0
    unmatched: int = 0
    first_failure: Failure | None = None
    late_failure: Failure | None = None

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
