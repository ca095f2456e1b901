"""The two small sheets beside the table: what has no partner, and what was compared with what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from tensorprobe._version import __version__
from tensorprobe.compare.inputs import PartPair
from tensorprobe.compare.match import Matcher
from tensorprobe.compare.options import Options
from tensorprobe.compare.result import Tally
from tensorprobe.report.compare_columns import Mode
from tensorprobe.report.table import Cell, Table

__all__ = ["inputs_table", "unmatched_table"]


def unmatched_table(matcher: Matcher) -> Table:
    """List what only one run has; read it when all calls are matched."""
    return Table("unmatched", ("Side", "Name", "Why", "Nearest"), _unmatched_rows(matcher))


def _unmatched_rows(matcher: Matcher) -> Iterator[list[Cell]]:
    for note in matcher.notes:
        side = "NPU" if note.side == "candidate" else "Bench"
        yield [side, note.name, note.why, ", ".join(matcher.nearest(note))]
    if matcher.unlisted:
        yield ["", "", f"… and {matcher.unlisted} more", ""]


def inputs_table(pair: PartPair, options: Options, mode: Mode, tally: Tally) -> Table:
    """Name both inputs, their versions, the options and the outcome."""
    return Table("inputs", ("", "NPU", "Bench"), _inputs_rows(pair, options, mode, tally))


def _inputs_rows(
    pair: PartPair, options: Options, mode: Mode, tally: Tally
) -> Iterator[list[Cell]]:
    parts = (pair.candidate, pair.reference)
    infos = [part.info for part in parts]
    yield ["path", *(str(part.path.absolute()) for part in parts)]
    yield ["written by", *(f"{i.tool} {i.tool_version or ''}".strip() for i in infos)]
    yield ["torch", *(info.torch_version for info in infos)]
    yield ["python", *(info.python_version for info in infos)]
    yield ["devices", *(", ".join(info.devices) for info in infos)]
    yield ["task", *(info.task for info in infos)]
    yield ["level", *(info.level for info in infos)]
    yield ["step", *(info.step for info in infos)]
    yield ["rank", *(info.rank for info in infos)]
    yield ["calls", *(len(part) for part in parts)]
    yield ["complete", *(info.complete for info in infos)]
    yield ["missing or damaged", *(len(part.known_gaps) for part in parts)]
    yield ["compared by", f"tensorprobe {__version__}", ""]
    yield ["compared at", datetime.now(timezone.utc).isoformat(timespec="seconds"), ""]
    yield ["mode", mode, ""]
    yield ["fuzzy", options.fuzzy, ""]
    yield ["mapping", f"{len(options.mapping)} names" if options.mapping else "", ""]
    yield ["highlight", options.highlight, ""]
    yield ["values compared", tally.compared, ""]
    yield ["passed", tally.passed, ""]
    yield ["failed", tally.failed, ""]
    yield ["without a verdict", tally.open, ""]
    yield ["unmatched", tally.unmatched, ""]
