"""Write a table as CSV: UTF-8, lines that end in LF, numbers as Python prints them.

A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers, also those
in a text such as `-inf`, stay as they are.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from itertools import islice

from tensorprobe.report.table import Cell, Table, new_report

__all__ = ["write_csv"]

_ROWS_PER_WRITE = 2000
# What starts a formula in one spreadsheet or another.
_FORMULA_STARTS = frozenset("=+-@\t\r")


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
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_harmless(table.header))
        rows = iter(table.rows)
        while batch := list(islice(rows, _ROWS_PER_WRITE)):
            writer.writerows([_harmless(row) for row in batch])
            file.write(_encoded(text.getvalue()))
            text.seek(0)
            text.truncate()
        file.write(_encoded(text.getvalue()))


def _harmless(row: Sequence[Cell]) -> Sequence[Cell]:
    # A million rows come by: those without such a text, nearly all, are not copied.
    for value in row:
        if type(value) is str and value[:1] in _FORMULA_STARTS:
            return [_as_text(cell) if isinstance(cell, str) else cell for cell in row]
    return row


def _as_text(text: str) -> str:
    if text[:1] not in _FORMULA_STARTS or _is_number(text):
        return text
    return "'" + text


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True


def _encoded(text: str) -> bytes:
    if "\0" in text:
        text = text.replace("\0", "�")
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, from a file's name that is no UTF-8.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
