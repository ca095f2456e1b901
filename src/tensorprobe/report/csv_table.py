"""Write a table as CSV: UTF-8, lines that end in LF, numbers as Python prints them.

A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers, also those
in a text such as `-inf`, stay as they are. Signs that a terminal obeys are replaced, with them
ends of lines that are not ours: the file is also read with `cat` and `grep`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tensorprobe.report.row_text import load_row_text
from tensorprobe.report.table import Cell, Lines, Table, new_report, reporting_trouble
from tensorprobe.system.clean_text import clean_text

__all__ = ["GrowingCsv", "harmless_cell", "write_csv"]

_ROWS_PER_WRITE = 2000
# So many seconds may pass between two writes of a table that grows.
_LONGEST_WAIT = 0.25
# What starts a formula in one spreadsheet or another.
_FORMULA_STARTS = tuple("=+-@＝＋－＠")
_QUOTED = re.compile(r'[",\n]')


def write_csv(path: str | os.PathLike[str], table: Table) -> None:
    """Write one table; the file appears when it is whole.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "a.csv")
    ...     write_csv(file, Table("a", ("name", "max"), [("x", 0.5), ("=1+1", None)]))
    ...     print(file.read_text(), end="")
    name,max
    x,0.5
    '=1+1,

    Raises:
        ReportError: the file cannot be written.
    """
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(_line(table.header))
        lines = _lines(table.rows)
        # Each row is gone before the next one is made: they never leave the processor's cache.
        while some := b"".join(islice(lines, _ROWS_PER_WRITE)):
            file.write(some)


def _lines(rows: Iterable[Sequence[Cell]]) -> Iterator[bytes]:
    compiled = load_row_text()
    make = _line if compiled is None else compiled.csv_row
    return (make(row) or _line(row) for row in rows)


def _line(row: Sequence[Cell]) -> bytes:
    text = ",".join(map(_cell_text, row)) or '""'
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, from a file's name that is no UTF-8.
        units = f"{text}\n".encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "replace").encode()


def _cell_text(value: Cell) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        # A number of numpy prints its type in its repr.
        return repr(float(value)) if isinstance(value, float) else str(value)
    text = harmless_cell(value)
    if not _QUOTED.search(text):
        return text
    quoted = text.replace('"', '""')
    return f'"{quoted}"'


def harmless_cell(text: str) -> str:
    r"""Return a text that is no formula to a spreadsheet and no command to a terminal.

    >>> harmless_cell("=cmd()"), harmless_cell("-1.5%"), harmless_cell("a\x1b\nb")
    ("'=cmd()", '-1.5%', 'a��b')
    """
    cell = text if isinstance(text, Lines) else clean_text(text)
    return f"'{cell}" if cell.startswith(_FORMULA_STARTS) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True


class GrowingCsv:
    """A table to which rows are added; those of the last moments may be on their way to the disk.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "a.csv")
    ...     table = GrowingCsv(file, ("name", "max"))
    ...     table.add([("x", 0.5), ("y", None)])
    ...     table.close()
    ...     print(file.read_text(), end="")
    name,max
    x,0.5
    y,

    Args:
        path: the file; there is none of that name yet.
        titles: its first row.

    Attributes:
        lost: how many rows could not be written; what is in the file are whole rows.

    Raises:
        ReportError: the file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], titles: Sequence[str]) -> None:
        self._path = path
        self.lost = 0
        self._rows: list[bytes] = []
        self._written = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        with reporting_trouble(path):
            self._descriptor = os.open(path, flags, 0o666)
            os.write(self._descriptor, _line(titles))

    def add(self, rows: Iterable[Sequence[Cell]], *, at_once: bool = False) -> None:
        """Add rows.

        Args:
            rows: their cells.
            at_once: whether they are to be in the file when this returns.

        Raises:
            ReportError: they cannot be written.
        """
        self._rows += _lines(rows)
        if at_once or time.monotonic() - self._written > _LONGEST_WAIT:
            self._write()

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        self._written = time.monotonic()
        data = memoryview(b"".join(rows))
        with reporting_trouble(self._path):
            end = os.fstat(self._descriptor).st_size
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self.lost += len(rows)
                # Half a row would spoil the one behind it.
                os.ftruncate(self._descriptor, end)
                raise

    def close(self) -> None:
        """Write what is left and close the file.

        Raises:
            ReportError: it cannot be written.
        """
        if self._descriptor == -1:
            return
        try:
            self._write()
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
