"""Write tables as one xlsx workbook, streamed: memory stays the same however many rows come.

    Table ─► RowWriter (report.xlsx_cells) ─► sheet XML ─► a thread that packs it ─► the zip

The XML is written by hand, because packages that build it cell by cell take ten times as long. Each
table gets a sheet with a frozen header and a filter. What a sheet cannot hold goes on in another of
the same title and a number. Every text is written as a text, so nothing in it is ever a formula.
"""

from __future__ import annotations

import os
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# xml.sax would bring urllib, ssl and email with it, which take long to import.
from html import escape
from itertools import chain, islice
from typing import IO, NamedTuple

from tensorprobe.errors import ReportError
from tensorprobe.report.table import Cell, Table, new_report
from tensorprobe.report.xlsx_cells import RowWriter, column_letters
from tensorprobe.system.thread_pool import Pending, ThreadPool

__all__ = ["ROWS_PER_SHEET", "write_xlsx"]

ROWS_PER_SHEET = 1_048_576
"""What Excel opens, header included."""

_MOST_COLUMNS = 16_384
# A larger member of a zip needs a form that not every spreadsheet reads.
_BYTES_PER_SHEET = 2_000_000_000
_BYTES_PER_WRITE = 1 << 20
_WAITING_WRITES = 4
# Level 1 packs such text to a twentieth already; level 6 takes three times as long for a thirtieth.
_PACKING = 1
_ROWS_FOR_WIDTHS = 300
_NARROWEST, _WIDEST = 9, 60
_LONGEST_TITLE = 31
_HEADER_STYLE = 1
_FILL_STYLES = {"red": 2, "yellow": 3}
# The colours that the older tools fill cells with.
_FILL_COLOURS = {"red": "FFFF0000", "yellow": "00FFFF00"}

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_CONTENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"


class _Sheet(NamedTuple):
    """A sheet that is written: its title and how large it is, header included."""

    title: str
    columns: int
    rows: int


def write_xlsx(path: str | os.PathLike[str], tables: Sequence[Table]) -> None:
    """Write a workbook with a sheet per table; the file appears when it is whole.

    Args:
        path: the file; one that is there is replaced.
        tables: what to write, at least one.

    Raises:
        ReportError: the file cannot be written, or a table has more columns than a sheet.
    """
    for table in tables:
        if len(table.header) > _MOST_COLUMNS:
            raise ReportError(
                f"{str(path)!r}: the table {table.title!r} has {len(table.header)} columns and a "
                f"sheet at most {_MOST_COLUMNS}; write csv instead"
            )
    with (
        new_report(path) as descriptor,
        open(descriptor, "r+b", closefd=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_PACKING) as archive,
    ):
        sheets: list[_Sheet] = []
        for table in tables:
            _write_table(archive, table, sheets)
        _write_parts(archive, sheets)


def _write_table(archive: zipfile.ZipFile, table: Table, sheets: list[_Sheet]) -> None:
    """Write the sheets of one table."""
    rows = iter(table.rows)
    first_rows = list(islice(rows, _ROWS_FOR_WIDTHS))
    widths = table.widths or _fitting_widths(table.header, first_rows)
    numbered = enumerate(chain(first_rows, rows))
    waiting = next(numbered, None)
    part = 1
    while part == 1 or waiting is not None:
        title = _free_title(table.title, part, {sheet.title.lower() for sheet in sheets})
        with _open_sheet(archive, len(sheets) + 1) as sheet:
            last_row, waiting = _write_sheet(sheet, table, widths, waiting, numbered)
        sheets.append(_Sheet(title, len(table.header), last_row))
        part += 1


_NumberedRow = tuple[int, Sequence[Cell]]


def _write_sheet(
    sheet: _SheetFile,
    table: Table,
    widths: Sequence[float],
    waiting: _NumberedRow | None,
    numbered: Iterator[_NumberedRow],
) -> tuple[int, _NumberedRow | None]:
    """Write rows until the sheet is full; return its last row and the table row that is left."""
    writer = RowWriter()
    make_row = writer.row
    fills = table.fills
    pieces = [_sheet_start(widths).encode(), make_row(1, table.header, _HEADER_STYLE)]
    waiting_bytes, written = 0, 0
    last_row = 1
    while waiting is not None and last_row < ROWS_PER_SHEET and written < _BYTES_PER_SHEET:
        index, row = waiting
        last_row += 1
        if not fills:
            made = make_row(last_row, row)
        else:
            style = _FILL_STYLES.get(fills.get(index, ""), 0)
            styles = [
                _FILL_STYLES.get(fills.get((index, column), ""), style)
                for column in range(len(row))
            ]
            made = (
                make_row(last_row, row, style)
                if styles.count(style) == len(styles)
                else writer.styled_row(last_row, row, styles)
            )
        pieces.append(made)
        waiting_bytes += len(made)
        if waiting_bytes > _BYTES_PER_WRITE:
            written += sheet.write(b"".join(pieces))
            pieces.clear()
            waiting_bytes = 0
        waiting = next(numbered, None)
    filtered = f"A1:{column_letters(len(table.header) - 1)}{last_row}"
    pieces.append(f'</sheetData><autoFilter ref="{filtered}"/></worksheet>'.encode())
    sheet.write(b"".join(pieces))
    return last_row, waiting


class _SheetFile:
    """A member of the zip that a thread packs while the next rows are made."""

    def __init__(self, file: IO[bytes], pool: ThreadPool) -> None:
        self._file = file
        self._pool = pool
        self._writes: deque[Pending[int]] = deque()

    def write(self, piece: bytes) -> int:
        if len(self._writes) == _WAITING_WRITES:
            self._writes.popleft().result()
        self._writes.append(self._pool.submit(self._file.write, piece))
        return len(piece)

    def finish(self) -> None:
        while self._writes:
            self._writes.popleft().result()


@contextmanager
def _open_sheet(archive: zipfile.ZipFile, number: int) -> Iterator[_SheetFile]:
    with (
        archive.open(f"xl/worksheets/sheet{number}.xml", "w") as file,
        # Inside, so that no write is under way when the member is closed.
        ThreadPool(1, "tensorprobe-xlsx") as pool,
    ):
        sheet = _SheetFile(file, pool)
        yield sheet
        sheet.finish()


def _fitting_widths(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[float]:
    """Return widths at which the header, its filter's arrow and the first rows can be read."""
    longest = [len(title) + 3 for title in header]
    for row in rows:
        for column, value in enumerate(row[: len(longest)]):
            if value is not None:
                first_line = str(value)[: _WIDEST + 1].partition("\n")[0]
                longest[column] = max(longest[column], len(first_line) + 1)
    return [min(max(length, _NARROWEST), _WIDEST) for length in longest]


def _free_title(title: str, part: int, taken: set[str]) -> str:
    """Return a title that a sheet may have and no other has, upper and lower case being one."""
    plain = "".join("_" if char in "[]:*?/\\" or not char.isprintable() else char for char in title)
    plain = plain.strip("' ") or "Sheet"
    number = part
    while True:
        ending = f" ({number})" if number > 1 else ""
        free = plain[: _LONGEST_TITLE - len(ending)].rstrip("' ") + ending
        # Excel keeps this one for itself.
        if free.lower() not in taken and free.lower() != "history":
            return free
        number += 1


# --- The parts of a workbook other than its sheets. -----------------------------------------------


def _sheet_start(widths: Sequence[float]) -> str:
    columns = "".join(
        f'<col min="{number}" max="{number}" width="{width:g}" customWidth="1"/>'
        for number, width in enumerate(widths, start=1)
    )
    return (
        f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        '<selection pane="bottomLeft"/></sheetView></sheetViews>'
        f"<cols>{columns}</cols><sheetData>"
    )


def _write_parts(archive: zipfile.ZipFile, sheets: Sequence[_Sheet]) -> None:
    numbers = range(1, len(sheets) + 1)
    parts = {
        "[Content_Types].xml": (
            f'<Types xmlns="{_PACKAGE}/content-types">'
            '<Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            '<Default Extension="xml" ContentType="application/xml"/>'
            f'<Override PartName="/xl/workbook.xml" ContentType="{_CONTENT}.sheet.main+xml"/>'
            f'<Override PartName="/xl/styles.xml" ContentType="{_CONTENT}.styles+xml"/>'
            + "".join(
                f'<Override PartName="/xl/worksheets/sheet{number}.xml" '
                f'ContentType="{_CONTENT}.worksheet+xml"/>'
                for number in numbers
            )
            + "</Types>"
        ),
        "_rels/.rels": _relations([("officeDocument", "xl/workbook.xml")]),
        "xl/_rels/workbook.xml.rels": _relations(
            [
                *(("worksheet", f"worksheets/sheet{number}.xml") for number in numbers),
                ("styles", "styles.xml"),
            ]
        ),
        "xl/workbook.xml": _workbook(sheets),
        "xl/styles.xml": _styles(),
    }
    for name, text in parts.items():
        # Of the day that a zip counts from, as its sheets are: one before it ends `writestr`.
        part = zipfile.ZipInfo(name)
        part.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(part, _XML + text, compresslevel=_PACKING)


def _relations(targets: Sequence[tuple[str, str]]) -> str:
    return (
        f'<Relationships xmlns="{_PACKAGE}/relationships">'
        + "".join(
            f'<Relationship Id="rId{number}" Type="{_RELATIONS}/{kind}" Target="{target}"/>'
            for number, (kind, target) in enumerate(targets, start=1)
        )
        + "</Relationships>"
    )


def _workbook(sheets: Sequence[_Sheet]) -> str:
    listed = "".join(
        f'<sheet name="{escape(sheet.title)}" sheetId="{number}" r:id="rId{number}"/>'
        for number, sheet in enumerate(sheets, start=1)
    )
    # Excel looks here for the cells that a filter covers.
    filters = "".join(
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{index}" hidden="1">'
        f"{_quoted_title(sheet.title)}!$A$1:${column_letters(sheet.columns - 1)}${sheet.rows}"
        "</definedName>"
        for index, sheet in enumerate(sheets)
    )
    return (
        f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><bookViews><workbookView/></bookViews>'
        f"<sheets>{listed}</sheets><definedNames>{filters}</definedNames></workbook>"
    )


def _quoted_title(title: str) -> str:
    return escape("'" + title.replace("'", "''") + "'")


def _styles() -> str:
    fills = "".join(
        f'<fill><patternFill patternType="solid"><fgColor rgb="{colour}"/></patternFill></fill>'
        for colour in _FILL_COLOURS.values()
    )
    # Plain, header, red, yellow: the order of the style numbers above. Excel keeps the fills 0 and
    # 1 for itself.
    formats = (
        '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
        '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>'
        '<xf numFmtId="0" fontId="0" fillId="2" borderId="0" xfId="0" applyFill="1"/>'
        '<xf numFmtId="0" fontId="0" fillId="3" borderId="0" xfId="0" applyFill="1"/>'
    )
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'<styleSheet xmlns="{_MAIN}"><fonts count="2"><font>{font}</font>'
        f'<font><b/>{font}</font></fonts><fills count="4"><fill><patternFill patternType="none"/>'
        f'</fill><fill><patternFill patternType="gray125"/></fill>{fills}</fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/>'
        f'</cellStyleXfs><cellXfs count="4">{formats}</cellXfs><cellStyles count="1">'
        '<cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )
