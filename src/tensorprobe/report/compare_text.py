"""What `tensorprobe compare` says on the terminal: a progress bar, then what came out."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.report.lines import print_line, warn_line
from tensorprobe.report.verdict_text import Verdict, count_words

__all__ = ["PartSummary", "print_answer", "print_call", "print_summary", "show_progress"]

_LISTED = 20
# More ranks and steps than these do not fit one screen.
_MANY = 8


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What is said of one rank.

    Attributes:
        label: which rank and step.
        kind: what was compared: real data, statistics or checksums.
        counts: how many values have which verdict.
        reference_only: how many calls and values only the reference has.
        examples: some of what is unmatched, and what comes nearest.
        first_failure: the name of the first value that fails.
        advice: the likely cause; empty if it was not asked for.
        files: what was written.
    """

    label: str
    kind: str
    counts: Counter[Verdict]
    reference_only: int
    examples: tuple[str, ...]
    first_failure: str | None
    advice: str
    files: tuple[Path, ...]

    @property
    def unmatched(self) -> int:
        """How many values of the candidate had no partner."""
        return self.counts["unmatched"]


def print_call(line: str) -> None:
    """Print what came out for one call."""
    print_line(line)


def print_answer(lines: Sequence[str]) -> None:
    """Print who is at fault, and an empty line."""
    for line in lines:
        print_line(line)
    print_line()


def print_summary(
    parts: Sequence[PartSummary], extra_files: Sequence[Path], missing: Sequence[str]
) -> None:
    """Print a few lines per rank, where the results are, and what could not be compared.

    Of many ranks only those are shown in which something fails or has no partner.
    """
    if len(parts) > _MANY:
        _print_many(parts)
    else:
        for part in parts:
            _print_part(part)
            for file in part.files:
                print_line(f"  {file}")
    for file in extra_files:
        print_line(str(file))
    for problem in missing[:_LISTED]:
        warn_line(f"missing: {problem}")
    if len(missing) > _LISTED:
        warn_line(f"missing: … and {len(missing) - _LISTED} more")


def _print_many(parts: Sequence[PartSummary]) -> None:
    kinds = " and ".join(dict.fromkeys(part.kind for part in parts))
    counts = sum((part.counts for part in parts), Counter())
    print_line(f"{len(parts)} ranks and steps: {_words(counts, kinds)}")
    shown = [
        part for part in parts if part.counts["failed"] or part.unmatched or part.reference_only
    ]
    for part in shown[:_LISTED]:
        _print_part(part)
    if len(shown) > _LISTED:
        labels = ", ".join(part.label for part in shown[_LISTED : 2 * _LISTED])
        more = ", …" if len(shown) > 2 * _LISTED else ""
        print_line(f"… and {len(shown) - _LISTED} more like these: {labels}{more}")
    by_folder: dict[Path, list[str]] = {}
    for part in parts:
        for file in part.files:
            by_folder.setdefault(file.parent, []).append(file.name)
    for folder, names in by_folder.items():
        first = ", ".join(file.name for file in parts[0].files if file.parent == folder)
        print_line(f"{len(names)} files in {folder}: {first}, …")


def _print_part(part: PartSummary) -> None:
    print_line(f"{part.label}: {_words(part.counts, part.kind)}")
    if part.unmatched or part.reference_only:
        print_line(
            f"  unmatched: {part.unmatched} values of the candidate, "
            f"{part.reference_only} calls and values of the reference"
        )
        for example in part.examples:
            print_line(f"    {example}")
        if part.unmatched > part.counts.total() - part.unmatched:
            print_line(
                "    most values have no partner: are these runs of one model, captured alike? "
                "--fuzzy matches calls whose numbers differ"
            )
    if part.first_failure is not None:
        print_line(f"  first that fails: {part.first_failure}")
    if part.advice:
        print_line(f"  {part.advice}")


def _words(counts: Counter[Verdict], kind: str) -> str:
    compared = counts.copy()
    del compared["unmatched"]
    words = count_words(compared, always=("passed", "failed"))
    return f"{compared.total()} values compared by {kind}: {words}"


@contextmanager
def show_progress(*, with_log: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar on stderr while the block runs, with the rate; nothing if that is no terminal.

    Args:
        with_log: whether calls are printed meanwhile. Where they go to a terminal they show how far
            it is, and a bar would be drawn again after each.

    Yields:
        What is to be told the unit (bytes or calls), how many are done, and of how many.
    """
    if not sys.stderr.isatty() or (with_log and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # What is printed goes where stdout goes, which may be a file.
        redirect_stdout=False,
    )
    with bar:
        task = bar.add_task("")
        started = time.monotonic()

        def tell(unit: str, done: int, total: int) -> None:
            rate = done / max(time.monotonic() - started, 1e-9)
            if unit == "bytes":
                text = f"{rate / 1e9:.2f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.1f} MB/s"
            else:
                text = f"{rate:,.0f} calls/s"
            bar.update(task, completed=done, total=max(total, done, 1), description=text)

        yield tell
