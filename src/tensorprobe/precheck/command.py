"""`tensorprobe precheck`: check a dump's calls with a progress bar, and print what was found."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tensorprobe.precheck.session import PrecheckReport, precheck_dump
from tensorprobe.report.console import QuietConsole
from tensorprobe.report.dump_text import print_gaps
from tensorprobe.report.precheck_text import CallLine, print_precheck
from tensorprobe.system.clean_text import clean_text

__all__ = ["run_precheck"]

_LONGEST_REASON = 140


def run_precheck(dump: str, **options: Any) -> int:
    """Check a dump and print a summary.

    Returns:
        The exit code: 1 if a call failed, else 2 if something of the dump could not be read.

    Raises:
        TensorprobeError: the dump cannot be opened or an option not be used.
    """
    errors = QuietConsole(stderr=True)
    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=errors, transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("starting", total=None)

        def show(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=clean_text(name))

        report = precheck_dump(dump, on_progress=show, **options)
    print_precheck(
        QuietConsole(),
        worst=[
            CallLine(line.part, line.name, line.forward, line.backward, line.message)
            for line in report.worst_first()
        ],
        counts=report.counts,
        older=report.older_counts,
        stands_for=report.stands_for,
        skipped=skip_reasons(report),
        paths=(*report.result_paths, *report.details_paths),
        seconds=report.seconds,
        notes=report.notes,
    )
    print_gaps(errors, report.gaps)
    if report.has_errors:
        return 1
    return 2 if report.gaps else 0


def skip_reasons(report: PrecheckReport) -> Counter[str]:
    """Count the calls that were not judged, by why."""
    return Counter(
        line.message
        if len(line.message) <= _LONGEST_REASON
        else f"{line.message[:_LONGEST_REASON]}…"
        for line in report.lines
        if line.verdict == "SKIP"
    )
