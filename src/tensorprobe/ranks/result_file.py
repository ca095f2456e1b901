"""One rank's result: what it compares, and its rows that are wanted.

    table_file ─► header: the mode ─► rows ─► those of the APIs ─► cells as they are merged

A row costs memory only if it is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprobe.errors import TableError
from tensorprobe.ranks.api_filter import ApiFilter
from tensorprobe.ranks.row_sieve import RowSieve
from tensorprobe.ranks.sheet_cells import Cell, SharedText
from tensorprobe.ranks.table_file import ReadRows, Tell, open_table
from tensorprobe.ranks.text_budget import TextBudget
from tensorprobe.report.compare_columns import (
    BENCH_MAX,
    NAME,
    NPU_MAX,
    Mode,
    columns_of,
    metrics_of,
    mode_of_columns,
)
from tensorprobe.report.table import Cell as TableCell

__all__ = ["RankRows", "ResultHead", "read_head", "read_rows"]

# What the older tools write where a metric has no value.
_NO_VALUE = frozenset(("n/a", "unsupported", "nan"))
# Tables with colours have truth values as texts.
_TRUTHS: dict[str, TableCell] = {"True": True, "False": False}
_MODES: tuple[Mode, ...] = ("tensor", "statistics", "md5")
_TITLES = frozenset(title for mode in _MODES for title in columns_of(mode, with_stack=True))


@dataclass(frozen=True, slots=True)
class ResultHead:
    """What the header of a result says.

    Attributes:
        path: the file.
        mode: what it compares.
        metrics: which metrics of the mode it has.
        instead: other files of the same result, should this one be damaged.
    """

    path: Path
    mode: Mode
    metrics: tuple[str, ...]
    instead: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class RankRows:
    """The rows of one rank that are wanted.

    Attributes:
        cells: for each name what its metrics are, in the order of the APIs and then of the file.
        repeated: how many rows have a name that came before; the first one counts.
    """

    cells: dict[str, tuple[TableCell, ...]]
    repeated: int


def read_head(path: Path) -> ResultHead:
    """Read what a result compares.

    Raises:
        TableError: it cannot be read, or is no result of a comparison.
    """
    with open_table(path) as table:
        for titles, *_ in table.parts(_TITLES.__contains__):
            mode = mode_of_columns(titles)
            if mode is not None:
                return ResultHead(path, mode, tuple(m for m in metrics_of(mode) if m in titles))
    raise TableError(
        f"{path.name}: is no result of compare: it has no table with a column {NAME!r} and those "
        "of a metric"
    )


def read_rows(
    head: ResultHead,
    metrics: Sequence[str],
    wanted: ApiFilter,
    tell: Tell | None = None,
) -> RankRows:
    """Read the rows that are wanted.

    Args:
        head: the result.
        metrics: the columns to return; one that the result has not is empty.
        wanted: which rows.
        tell: is given how many bytes of the file are read.

    Raises:
        TableError: the file is damaged.
    """

    def is_known(text: str) -> bool:
        # In the list of texts titles and names stand among all others, such as call stacks, which
        # are no help where an API is nowhere.
        if text[:1].isalpha() and " " not in text:
            wanted.note(text)
        return text in _TITLES or wanted.may_hold(text)

    with open_table(head.path, tell) as table:
        reading = _Reading(metrics, wanted, table.budget)
        for titles, rows, texts in table.parts(is_known):
            if mode_of_columns(titles) == head.mode:
                reading.read_part(titles, rows, texts)
        return reading.finish(table.texts(reading.shared()), head.path.name)


class _Reading:
    """Collects the rows of the parts of a table."""

    def __init__(self, metrics: Sequence[str], wanted: ApiFilter, budget: TextBudget) -> None:
        self._columns = (NAME, NPU_MAX, BENCH_MAX, *metrics)
        self._wanted = wanted
        self._budget = budget
        self._kept: dict[str, tuple[int, list[Cell]]] = {}
        self._first = (_FirstOfEqual(), _FirstOfEqual())
        self._repeated = 0

    def read_part(self, titles: Sequence[str], rows: ReadRows, names: dict[int, str]) -> None:
        """Read one sheet, or the csv."""
        there = [column for column in self._columns if column in titles]
        places = [self._columns.index(column) for column in there]
        kept, width = self._kept, len(self._columns)
        first_npu, first_bench = self._first
        wants = self._wanted.place
        columns = [titles.index(column) for column in there]
        for found in rows(columns, self._sieve(titles, names)):
            if len(there) == width:
                row = found
            else:
                row = [None] * width
                for place, cell in zip(places, found, strict=True):
                    row[place] = cell
            name = row[0]
            if type(name) is SharedText:
                name = names.get(name)
            row[1], row[2] = first_npu.of(row[1]), first_bench.of(row[2])
            if not isinstance(name, str):
                continue
            number = wants(name)
            if number is None:
                continue
            if name in kept:
                self._repeated += 1
            else:
                keep = self._budget.keep
                kept[keep(name)] = (number, [keep(c) if type(c) is str else c for c in row])

    def _sieve(self, titles: Sequence[str], names: Mapping[int, str]) -> RowSieve | None:
        if titles[0] != NAME:
            return None
        watched = [titles.index(column) for column in (NPU_MAX, BENCH_MAX) if column in titles]
        place = self._wanted.place

        def wants(name: str | SharedText) -> bool:
            known = names.get(name) if isinstance(name, SharedText) else name
            return known is not None and place(known) is not None

        return RowSieve(wants, watched, lambda: all(one.is_settled() for one in self._first))

    def shared(self) -> set[int]:
        """Return which texts of the workbook's list the rows name."""
        return {cell for _, row in self._kept.values() for cell in row if type(cell) is SharedText}

    def finish(self, texts: dict[int, str], where: str) -> RankRows:
        """Return the rows as they are merged."""
        cells: dict[str, tuple[TableCell, ...]] = {}
        for name, (_, row) in sorted(self._kept.items(), key=lambda item: item[1][0]):
            plain = [_plain(cell, texts, where) for cell in row[1:]]
            npu, bench, *metrics = plain
            instead = None
            for number, cell in enumerate(metrics):
                if isinstance(cell, str) and cell.lower() in _NO_VALUE:
                    if instead is None:
                        text = f"NPU:{_text_of(npu)}  Bench:{_text_of(bench)}"
                        instead = self._budget.keep(text)
                    metrics[number] = instead
                elif isinstance(cell, str):
                    metrics[number] = _TRUTHS.get(cell, cell)
            cells[name] = tuple(metrics)
        return RankRows(cells, self._repeated)


class _FirstOfEqual:
    """Of values that are equal, True and 1, the older tool shows the one its column has first."""

    def __init__(self) -> None:
        self._first: dict[Cell, Cell] = {}

    def of(self, cell: Cell) -> Cell:
        """Return the cell, or an equal one that came before."""
        if type(cell) in (bool, int) and cell in (0, 1):
            return self._first.setdefault(cell, cell)
        return cell

    def is_settled(self) -> bool:
        """Whether one of each came."""
        return len(self._first) == 2


def _plain(cell: Cell, texts: dict[int, str], where: str) -> TableCell:
    if isinstance(cell, SharedText):
        if cell not in texts:
            raise TableError(f"{where}: a cell names a text that the workbook does not hold")
        cell = texts[cell]
    if isinstance(cell, str):
        # Tables with colours have a tab after infinities.
        return cell.rstrip("\t") or None
    return cell


def _text_of(cell: TableCell) -> str:
    """Return a value as the older tools show it, numbers with the digits that their tables have."""
    if cell is None:
        return ""
    if not isinstance(cell, float):
        return str(cell)
    number = float(f"{cell:.16g}")
    return str(int(number)) if number.is_integer() else repr(number)
