"""The cells of a result in csv, row by row, with the kinds that they have in a workbook."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

from tensorprobe.errors import TableError
from tensorprobe.ranks.sheet_cells import Cell, to_number
from tensorprobe.ranks.table_bytes import TableBytes

__all__ = ["read_csv"]

_LONGEST_LINE = 1 << 20
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|[+-]?\.[0-9]+([eE][+-]?[0-9]+)?")
_TRUTHS = {"True": True, "False": False}
# What our own writer puts before a text that a spreadsheet would take for a formula.
_GUARDED = re.compile(r"'[=+\-@＝＋－＠]")


def read_csv(
    file: TableBytes, kept: Sequence[int] | None = None, *, where: str
) -> Iterator[list[Cell]]:
    """Yield the rows of a csv, the header first.

    Args:
        file: its bytes.
        kept: which columns to return, counted from 0; None: all.
        where: what messages call it.

    Raises:
        TableError: it is damaged, cut, or no csv.
    """
    text = io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8-sig", newline="")
    expected = 0
    try:
        for row in csv.reader(_lines(text, where), strict=True):
            expected = expected or len(row)
            if not row:
                continue
            if len(row) < expected:
                raise TableError(
                    f"{where}: a row has {len(row)} cells and the header {expected}; the file is "
                    "cut or damaged: copy it again, or compare again"
                )
            yield [_cell(row[column]) for column in (range(len(row)) if kept is None else kept)]
    except UnicodeDecodeError:
        raise TableError(f"{where}: is no text in UTF-8; save it as csv in UTF-8") from None
    except csv.Error as err:
        raise TableError(f"{where}: is a damaged or cut csv ({err}); copy it again") from None
    except OSError as err:
        raise TableError(f"{where}: cannot be read: {err.strerror}; copy it again") from err


def _lines(text: io.TextIOWrapper, where: str) -> Iterator[str]:
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise TableError(f"{where}: has a line of more than {_LONGEST_LINE >> 20} MiB")
        yield line


def _cell(text: str) -> Cell:
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return to_number(text)
    truth = _TRUTHS.get(text)
    if truth is not None:
        return truth
    return text[1:] if _GUARDED.match(text) else text
