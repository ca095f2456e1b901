"""Open an xlsx file of anybody's, and read its sheets piece by piece.

    file ─► zip ─► sheet XML, 64 KiB at a time ─► sheet_cells: rows
               └► the list of texts that cells share, where a spreadsheet has written one

No member is unpacked as a whole, and the directory of the zip is bounded, so that neither a zip
bomb nor a million members take memory. What is kept of the texts has a `text_budget`.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from tensorprobe.errors import TableError
from tensorprobe.ranks.row_sieve import RowSieve
from tensorprobe.ranks.sheet_cells import Cell, read_sheet, read_texts
from tensorprobe.ranks.table_bytes import TableBytes

__all__ = ["Sheet", "Workbook", "open_workbook"]

Sheet: TypeAlias = zipfile.ZipInfo

_BYTES_AT_ONCE = 1 << 16
_MOST_SHEETS = 1000
_SHEET = re.compile(r"xl/worksheets/[^/0-9]*([0-9]{0,9})\.xml", re.IGNORECASE)
_TEXTS = "xl/sharedstrings.xml"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
# What `zipfile` raises, depending on where a zip is damaged.
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(EOFError, NotImplementedError, OverflowError, ValueError),
)
_AGAIN = "copy it again, or compare again"


class Workbook:
    """The sheets of a workbook.

    Attributes:
        sheets: what they are called in the zip, in order.
    """

    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive = archive
        self._where = where
        members = archive.infolist()
        numbered = [
            (int(found[1] or 0), member)
            for member in members
            if (found := _SHEET.fullmatch(member.filename))
        ]
        if not numbered:
            raise TableError(f"{where}: is a zip, but no workbook: it holds no sheet")
        if len(numbered) > _MOST_SHEETS:
            raise TableError(f"{where}: has {len(numbered)} sheets, which no result has")
        self.sheets = tuple(member for _, member in sorted(numbered, key=lambda one: one[0]))
        self._texts = next((one for one in members if one.filename.lower() == _TEXTS), None)

    def rows(
        self, sheet: Sheet, kept: Sequence[int] | None = None, sieve: RowSieve | None = None
    ) -> Iterator[list[Cell]]:
        """Yield the rows of a sheet of some columns, perhaps without unwanted ones; or its header.

        Raises:
            TableError: the sheet is damaged.
        """
        chunks = self._chunks(sheet)
        return read_sheet(chunks if sieve is None else sieve.sift(chunks), kept, where=self._where)

    def texts(self) -> Iterator[str]:
        """Yield the texts that cells name by their number.

        Raises:
            TableError: the list is damaged.
        """
        if self._texts is None:
            return iter(())
        return read_texts(self._chunks(self._texts), where=self._where)

    def _chunks(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _PACKINGS:
            raise TableError(
                f"{self._where}: is encrypted, or packed as no workbook is; save it anew"
            )
        with _told(self._where), self._archive.open(member) as file:
            while chunk := file.read(_BYTES_AT_ONCE):
                yield chunk


@contextmanager
def open_workbook(file: TableBytes, where: str) -> Iterator[Workbook]:
    """Open a workbook.

    Raises:
        TableError: it is none, or damaged.
    """
    with _told(where):
        archive = zipfile.ZipFile(file)
    with archive:
        yield Workbook(archive, where)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say in one line what is wrong with a zip."""
    try:
        yield
    except _DAMAGES as err:
        reason = str(err) or "it ends too early"
        raise TableError(f"{where}: is a damaged or cut workbook ({reason}); {_AGAIN}") from None
    except OSError as err:
        raise TableError(f"{where}: cannot be read: {err.strerror or err}; {_AGAIN}") from err
