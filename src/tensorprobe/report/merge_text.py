"""What `tensorprobe merge` says on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.report.lines import print_line, warn_line

__all__ = ["MergedLine", "print_merged"]

_LISTED = 20


@dataclass(frozen=True, slots=True)
class MergedLine:
    """What is said of one workbook.

    Attributes:
        step: the step; None where there is only one.
        kind: what the results compare: real data or statistics.
        ranks: which ranks have a column.
        count: how many.
        rows: how many rows a sheet has.
        sheets: the metrics.
        file: the workbook.
    """

    step: int | None
    kind: str
    ranks: str
    count: int
    rows: int
    sheets: tuple[str, ...]
    file: Path


def print_merged(
    lines: Sequence[MergedLine], notes: Sequence[str], problems: Sequence[str]
) -> None:
    """Print two lines per workbook, what is worth knowing, and what could not be merged."""
    for line in lines:
        step = "" if line.step is None else f"step {line.step}: "
        print_line(
            f"{step}{_counted(line.count, 'rank')} ({line.ranks}) merged by {line.kind}: "
            f"{_counted(line.rows, 'row')} in {_counted(len(line.sheets), 'sheet')}, "
            f"{', '.join(line.sheets)}"
        )
        print_line(f"  {line.file}")
    for label, texts in (("note", notes), ("missing", problems)):
        for text in texts[:_LISTED]:
            warn_line(f"{label}: {text}")
        if len(texts) > _LISTED:
            warn_line(f"{label}: … and {len(texts) - _LISTED} more")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
