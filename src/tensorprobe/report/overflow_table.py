"""The table of a dump's overflows, one row for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tensorprobe.report.table import Table

__all__ = ["OverflowRow", "overflow_table"]

_TITLES = (
    "Part",
    "API Name",
    "Overflow",
    "Verdict",
    "CPU, recorded dtype",
    "CPU, higher precision",
    "Device",
    "Input range",
    "Output range",
    "Message",
    "Stack",
)


class OverflowRow(NamedTuple):
    """One overflow as it is written; empty where there is nothing to say."""

    part: str
    name: str
    kind: str
    verdict: str
    on_cpu: str
    exact: str
    on_device: str
    inputs: str
    outputs: str
    message: str
    stack: str


def overflow_table(rows: Iterable[OverflowRow]) -> Table:
    """Return the table of some overflows."""
    return Table("overflow", _TITLES, rows)
