"""The table of all tolerances, for people and for benchmarks: name, value, and why it is so.

python -m tensorprobe.rounding.tolerance_table      prints the table of docs/tolerances.md
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
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


if __name__ == "__main__":
    sys.stdout.write(as_markdown() + "\n")
