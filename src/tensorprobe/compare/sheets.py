"""The two small sheets beside the table: what has no partner, and what was compared with what.

A workbook holds them as sheets; beside a csv or json they are one JSON file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tensorprobe._version import __version__
from tensorprobe.compare.options import Options
from tensorprobe.compare.result import Tally
from tensorprobe.pairing.match import Matcher
from tensorprobe.pairing.ranks import PartPair
from tensorprobe.report.compare_columns import Mode
from tensorprobe.report.table import Cell, Table, new_report
from tensorprobe.report.verdict_text import WORDS

__all__ = ["inputs_table", "unmatched_table", "write_summary"]

_SIDES = ("NPU", "Bench")


def unmatched_table(matcher: Matcher) -> Table:
    """List what only one run has; read it when all calls are matched."""
    return Table("unmatched", ("Side", "Name", "Why", "Nearest"), _unmatched_rows(matcher))


def _unmatched_rows(matcher: Matcher) -> Iterator[list[Cell]]:
    for note in matcher.notes:
        side = _SIDES[note.side != "candidate"]
        yield [side, note.name, note.why, ", ".join(matcher.nearest(note))]
    if matcher.unlisted:
        yield ["", "", f"… and {matcher.unlisted} more", ""]


def inputs_table(pair: PartPair, options: Options, mode: Mode, tally: Tally) -> Table:
    """Name both inputs, their versions, the options and the outcome."""
    rows = itertools.chain(
        _side_rows(pair),
        ([name, value, ""] for name, value in _outcome(options, mode, tally)),
    )
    return Table("inputs", ("What", *_SIDES), rows)


def write_summary(
    path: Path, pair: PartPair, options: Options, mode: Mode, tally: Tally, matcher: Matcher
) -> None:
    """Write what both sheets hold as one JSON object.

    Raises:
        ReportError: the file cannot be written.
    """
    sides = list(_side_rows(pair))
    summary: dict[str, Any] = {
        side: {str(row[0]): row[column] for row in sides}
        for column, side in enumerate(_SIDES, start=1)
    }
    unmatched = unmatched_table(matcher)
    rows = [dict(zip(unmatched.header, row, strict=True)) for row in unmatched.rows]
    summary |= {**dict(_outcome(options, mode, tally)), unmatched.title: rows}
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(summary, indent=1).encode() + b"\n")


def _side_rows(pair: PartPair) -> Iterator[list[Cell]]:
    infos = [part.info for part in pair]
    yield ["path", *(str(part.path.absolute()) for part in pair)]
    yield ["written by", *(f"{i.tool} {i.tool_version or ''}".strip() for i in infos)]
    yield ["torch", *(info.torch_version for info in infos)]
    yield ["python", *(info.python_version for info in infos)]
    yield ["devices", *(", ".join(info.devices) for info in infos)]
    yield ["task", *(info.task for info in infos)]
    yield ["level", *(info.level for info in infos)]
    yield ["step", *(info.step for info in infos)]
    yield ["rank", *(info.rank for info in infos)]
    yield ["calls", *(len(part) for part in pair)]
    yield ["complete", *(info.complete for info in infos)]
    yield ["missing or damaged", *(len(part.known_gaps) for part in pair)]


def _outcome(options: Options, mode: Mode, tally: Tally) -> Iterator[tuple[str, Cell]]:
    yield "compared by", f"tensorprobe {__version__}"
    yield "compared at", datetime.now(timezone.utc).isoformat(timespec="seconds")
    yield "mode", mode
    yield "fuzzy", options.fuzzy
    yield "mapping", f"{len(options.mapping)} names" if options.mapping else ""
    yield "highlight", options.highlight
    yield "advice", options.advise
    yield "first difference", options.first_difference
    yield "call stacks", "if there are any" if options.stack is None else options.stack
    yield "formats", ", ".join(options.formats)
    yield "values compared", tally.compared
    for verdict, words in WORDS.items():
        yield "values unmatched" if verdict == "unmatched" else words, tally.counts[verdict]
