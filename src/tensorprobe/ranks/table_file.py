"""A result file of either kind, as parts that have a header and rows below it.

    xlsx ─► workbook ─► one part per sheet, and the texts that its cells share
    csv ─► csv_cells ─► one part

A list of texts has those of all rows, so it is not kept. It is read once before the rows, for the
titles and the names that are wanted, and once after them, for what the wanted rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

from tensorprobe.ranks.csv_cells import read_csv
from tensorprobe.ranks.row_sieve import RowSieve
from tensorprobe.ranks.sheet_cells import Cell, SharedText
from tensorprobe.ranks.table_bytes import open_bytes
from tensorprobe.ranks.text_budget import TextBudget
from tensorprobe.ranks.workbook import Sheet, Workbook, open_workbook

__all__ = ["ReadRows", "TableFile", "Tell", "open_table"]

Tell: TypeAlias = Callable[[int], None]
ReadRows: TypeAlias = Callable[[Sequence[int], RowSieve | None], Iterator[list[Cell]]]


class TableFile(Protocol):
    """What is read of a result.

    Attributes:
        budget: how much of its text may be kept.
    """

    budget: TextBudget

    def parts(
        self, is_known: Callable[[str], bool]
    ) -> Iterator[tuple[tuple[str, ...], ReadRows, dict[int, str]]]:
        """Yield the titles of each part, what reads its rows, and known texts.

        What reads the rows is given the columns, and perhaps a sieve for those nobody wants.

        Args:
            is_known: which texts of the list are to be kept, for cells that name them.
        """
        ...

    def texts(self, numbers: Collection[int]) -> dict[int, str]:
        """Return texts of the list by their number."""
        ...


@contextmanager
def open_table(path: Path, tell: Tell | None = None) -> Iterator[TableFile]:
    """Open a result, by the ending of its name.

    Args:
        path: the file.
        tell: is given how many bytes of it are read.

    Raises:
        TableError: it cannot be opened.
    """
    if path.suffix.lower() == ".csv":
        yield _CsvTable(path, tell)
        return
    with (
        open_bytes(path, tell) as file,
        open_workbook(file, path.name) as workbook,
    ):
        yield _SheetTable(workbook, path.name)


class _CsvTable:
    def __init__(self, path: Path, tell: Tell | None) -> None:
        self._path, self._tell = path, tell
        self.budget = TextBudget(path.name)

    def parts(
        self, is_known: Callable[[str], bool]
    ) -> Iterator[tuple[tuple[str, ...], ReadRows, dict[int, str]]]:
        for header in self._rows(None):
            yield _titles(header, {}), self._rows_below, {}
            break

    def texts(self, numbers: Collection[int]) -> dict[int, str]:
        return {}

    def _rows_below(self, kept: Sequence[int], _: RowSieve | None) -> Iterator[list[Cell]]:
        return islice(self._rows(kept), 1, None)

    def _rows(self, kept: Sequence[int] | None) -> Iterator[list[Cell]]:
        with open_bytes(self._path, self._tell) as file:
            yield from read_csv(file, kept, where=self._path.name)


class _SheetTable:
    def __init__(self, workbook: Workbook, where: str) -> None:
        self._workbook = workbook
        self.budget = TextBudget(where)

    def parts(
        self, is_known: Callable[[str], bool]
    ) -> Iterator[tuple[tuple[str, ...], ReadRows, dict[int, str]]]:
        known = self._kept(lambda _, text: is_known(text))
        for sheet in self._workbook.sheets:
            for header in self._workbook.rows(sheet):

                def rows(
                    kept: Sequence[int], sieve: RowSieve | None, sheet: Sheet = sheet
                ) -> Iterator[list[Cell]]:
                    return islice(self._workbook.rows(sheet, kept, sieve), 1, None)

                yield _titles(header, known), rows, known
                break

    def texts(self, numbers: Collection[int]) -> dict[int, str]:
        return self._kept(lambda number, _: number in numbers) if numbers else {}

    def _kept(self, wants: Callable[[int, str], bool]) -> dict[int, str]:
        kept: dict[int, str] = {}
        for number, text in enumerate(self._workbook.texts()):
            if wants(number, text):
                self.budget.spend()
                kept[number] = self.budget.keep(text)
        return kept


def _titles(header: Sequence[Cell], known: dict[int, str]) -> tuple[str, ...]:
    """Return the titles of a table; one that nobody knows is blank."""
    return tuple(
        known.get(cell, "")
        if isinstance(cell, SharedText)
        else cell
        if isinstance(cell, str)
        else ""
        for cell in header
    )
