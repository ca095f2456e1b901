"""Show what a pre-check found on a terminal: counts, then the worst calls first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorprobe.report.console import print_styled
from tensorprobe.system.clean_text import clean_text, one_line

__all__ = ["CallLine", "print_precheck"]

_STYLES = {"error": "bold red", "warning": "yellow", "pass": "green", "SKIP": "dim"}
_MOST_LINES = 20
_OLDER_RULE = "by the older tools' rule (cosine over 0.99, and 双千 or 双万)"


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
    older: Mapping[str, int],
    stands_for: int,
    skipped: Mapping[str, int],
    paths: Sequence[Path],
    seconds: float,
    notes: Sequence[str] = (),
) -> None:
    """Print a summary.

    Args:
        console: where to.
        worst: the calls that failed or are doubtful, worst first.
        counts: how many calls got each verdict.
        older: how many pass and fail by the rule of the older tools.
        stands_for: how many calls the checked ones are in the dump.
        skipped: how many calls were skipped for each reason.
        paths: the files that were written.
        seconds: how long it took.
        notes: what a reader has to know beside.
    """
    if worst:
        has_parts = len({line.part for line in worst}) > 1
        table = Table(box=None, pad_edge=False, show_edge=False)
        for title in (*(["part"] if has_parts else []), "call", "forward", "backward", "why"):
            table.add_column(title, overflow="fold")
        for line in worst[:_MOST_LINES]:
            cells = [_cell(line.part)] if has_parts else []
            cells += [_cell(line.name), _verdict(line.forward), _verdict(line.backward)]
            table.add_row(*cells, _cell(one_line(line.message)))
        console.print(table)
        if len(worst) > _MOST_LINES:
            print_styled(console, Text(f"… and {len(worst) - _MOST_LINES} more in the result file"))
        print_styled(console, Text())
    if skipped:
        print_styled(console, Text("skipped:"))
        for reason, count in sorted(skipped.items(), key=lambda item: -item[1])[:_MOST_LINES]:
            print_styled(console, Text(f"  {count:6}  {one_line(reason)}"))
        print_styled(console, Text())
    total = sum(counts.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    repeated = f" (for {stands_for} in the dump)" if stands_for > total else ""
    text = f"{total} calls{repeated}: {verdicts or 'none'}; {seconds:.1f} s"
    print_styled(console, Text(text))
    if judged := sum(older.values()):
        by_older = ", ".join(f"{count} {verdict}" for verdict, count in older.items())
        others = f"; it does not judge {total - judged}" if total > judged else ""
        print_styled(console, Text(f"{_OLDER_RULE}: {by_older}{others}"))
    for note in notes:
        print_styled(console, Text(one_line(note)))
    for path in paths:
        print_styled(console, Text(str(path)))


def _cell(text: str) -> Text:
    # The table breaks lines itself; what a file put into a cell must not.
    return Text(clean_text(text))


def _verdict(verdict: str) -> Text:
    return Text(clean_text(verdict), style=_STYLES.get(verdict, ""))
