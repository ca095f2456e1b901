"""Show on a terminal what a dump's overflows are, and where the first one came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tensorprobe.report.console import print_styled

__all__ = ["OriginLine", "print_overflow_end"]

_STYLES = {"abnormal": "bold red", "normal": "green", "not judged": "yellow"}
_MOST_RANKS = 8


class OriginLine(NamedTuple):
    """The first value of one rank that is not finite, as it is shown."""

    part: str
    name: str
    made: bool
    inputs: str
    outputs: str


def print_overflow_end(
    console: Console,
    *,
    counts: Mapping[str, int],
    origins: Sequence[OriginLine],
    paths: Sequence[Path],
) -> None:
    """Print what stands behind the sentences: counts, the origin, the files.

    Args:
        console: where to.
        counts: how many overflows got each verdict.
        origins: the first of each rank, the origin of all first.
        paths: the files.
    """
    if counts:
        line = Text()
        for verdict, count in counts.items():
            line.append(", " if line else "")
            line.append(f"{count} {verdict}", style=_STYLES.get(verdict, ""))
        print_styled(console, line)
    else:
        print_styled(console, Text("No call overflowed."))
    if origins:
        _print_origins(console, origins)
    for path in paths:
        print_styled(console, Text(f"written: {path}"))


def _print_origins(console: Console, origins: Sequence[OriginLine]) -> None:
    first, *others = origins
    if first.made:
        said = "The first call that made a value that is not finite"
    else:
        said = "No recorded call made it; the first call that was given a value that is not finite"
    line = f"{said}: {first.name} in {first.part}, {_described(first)}"
    print_styled(console, Text(line, style="bold"))
    for other in others[:_MOST_RANKS]:
        verb = "made its first in" if other.made else "was given its first in"
        print_styled(console, Text(f"  {other.part} {verb} {other.name}, {_described(other)}"))
    if len(others) > _MOST_RANKS:
        print_styled(console, Text(f"  and {len(others) - _MOST_RANKS} more"))


def _described(origin: OriginLine) -> str:
    given = f"from {origin.inputs}" if origin.inputs else "from nothing recorded"
    made = f"to {origin.outputs}" if origin.outputs else "to nothing recorded"
    return f"{given} {made}"
