"""The table of all tolerances, for people and for benchmarks: name, value, and why it is so.

python -m tensorprobe.rounding.tolerance_table FILE     puts it in the place of the one in a page
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tensorprobe.rounding import tolerances

__all__ = ["Tolerance", "all_tolerances", "as_markdown"]


class Tolerance(NamedTuple):
    """One constant of `tolerances`: its name, its value, and the text below it."""

    name: str
    value: float
    why: str


def all_tolerances() -> list[Tolerance]:
    """Return all tolerances in the order of their file."""
    body = ast.parse(inspect.getsource(tolerances)).body
    found = []
    for statement, text in pairwise(body):
        match statement, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(
                value=ast.Constant(value=str(why))
            ):
                found.append(Tolerance(name, getattr(tolerances, name), " ".join(why.split())))
    return found


def as_markdown() -> str:
    """Return the table as docs/tolerances.md has it."""
    rows = [f"| `{name}` | {value:g} | {why} |" for name, value, why in all_tolerances()]
    return "\n".join(("| name | value | derived from, or what it buys |", "|---|---|---|", *rows))


def _renew(file: Path) -> None:
    """Put the table in the place of the one that a page holds."""
    lines = file.read_text().splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("|")]
    lines[rows[0] : rows[-1] + 1] = as_markdown().splitlines()
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _renew(Path(sys.argv[1]))
