"""Show what a pre-check found on a terminal: counts, then the worst calls first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["CallLine", "print_precheck"]

_STYLES = {"error": "bold red", "warning": "yellow", "pass": "green", "SKIP": "dim"}
_MOST_LINES = 20


class CallLine(NamedTuple):
    """One call as it is shown."""

    part: str
    name: str
    forward: str
    backward: str
    message: str


def print_precheck(
    console: Console,
    *,
    worst: Sequence[CallLine],
    counts: Mapping[str, int],
    stands_for: int,
    skipped: Mapping[str, int],
    paths: Sequence[Path],
    seconds: float,
) -> None:
    """Print a summary.

    Args:
        console: where to.
        worst: the calls that failed or are doubtful, worst first.
        counts: how many calls got each verdict.
        stands_for: how many calls the checked ones are in the dump.
        skipped: how many calls were skipped for each reason.
        paths: the files that were written.
        seconds: how long it took.
    """
    if worst:
        has_parts = len({line.part for line in worst}) > 1
        table = Table(box=None, pad_edge=False, show_edge=False)
        for title in (*(["part"] if has_parts else []), "call", "forward", "backward", "why"):
            table.add_column(title, overflow="fold")
        for line in worst[:_MOST_LINES]:
            cells = [Text(line.part)] if has_parts else []
            cells += [Text(line.name), _styled(line.forward), _styled(line.backward)]
            table.add_row(*cells, Text(line.message))
        console.print(table)
        if len(worst) > _MOST_LINES:
            console.print(f"… and {len(worst) - _MOST_LINES} more in the result file")
        console.print()
    if skipped:
        console.print("skipped:")
        for reason, count in sorted(skipped.items(), key=lambda item: -item[1])[:_MOST_LINES]:
            console.print(Text(f"  {count:6}  {reason}"), soft_wrap=True)
        console.print()
    total = sum(counts.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    repeated = f" (for {stands_for} in the dump)" if stands_for > total else ""
    console.print(Text(f"{total} calls{repeated}: {verdicts or 'none'}; {seconds:.1f} s"))
    for path in paths:
        console.print(Text(str(path)), soft_wrap=True)


def _styled(verdict: str) -> Text:
    return Text(verdict, style=_STYLES.get(verdict, ""))
