"""The cells of one sheet of a workbook, from its XML, row by row.

<row><c r="A1" t="inlineStr"><is><t>…  ─► the columns that are wanted ─► [cell, cell, …]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensorprobe.errors import TableError
from tensorprobe.ranks.xml_reader import DEEPEST, read_xml

__all__ = ["Cell", "SharedText", "read_sheet", "read_texts", "to_number"]

_MOST_ROWS = 1_048_576
_MOST_COLUMNS = 16_384
# What Excel takes, counted a little more simply.
_LONGEST_TEXT = 32_767
# Longer than any title that is known.
_LONGEST_TITLE = 256
# How a text is pronounced, which stands beside it.
_GUIDE = "rPh"
_LARGEST_EXACT = 2**53
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")


class SharedText(int):
    """The number of a text in the workbook's list of texts, where it stands once for all cells."""

    __slots__ = ()


Cell = str | float | int | bool | SharedText | None


def read_sheet(
    chunks: Iterable[bytes], kept: Sequence[int] | None, *, where: str
) -> Iterator[list[Cell]]:
    """Yield the rows of a sheet.

    Args:
        chunks: the bytes of the sheet.
        kept: which columns to return, counted from 0; None: all, of the header alone.
        where: what messages call it.

    Raises:
        TableError: it is damaged or no sheet.
    """
    handlers = _SheetHandlers(kept, where)
    for _ in read_xml(chunks, handlers, where=where):
        yield from handlers.rows
        if kept is None and handlers.rows:
            return
        handlers.rows.clear()


def read_texts(chunks: Iterable[bytes], *, where: str) -> Iterator[str]:
    """Yield the texts of a workbook's list, which cells name by their number.

    Raises:
        TableError: it is damaged or no such list.
    """
    handlers = _TextHandlers(where)
    for _ in read_xml(chunks, handlers, where=where):
        yield from handlers.texts
        handlers.texts.clear()


def to_number(text: str) -> float | int | str:
    """Return what a number means; a whole one as whole, a text that is none, or infinite, as it is.

    >>> to_number("1.0"), to_number("-2.5e-3"), to_number("inf"), to_number("n/a")
    (1, -0.0025, 'inf', 'n/a')
    """
    try:
        number = float(text)
    except ValueError:
        return text
    if abs(number) < _LARGEST_EXACT:
        return int(number) if number == int(number) else number
    # Not below that, so large, infinite or no number.
    return number if abs(number) < float("inf") else text.strip()


class _SheetHandlers:
    """Puts rows together; every name may have the prefix that the first one has."""

    def __init__(self, kept: Sequence[int] | None, where: str) -> None:
        self.rows: list[list[Cell]] = []
        self._where = where
        self._kept = None if kept is None else {column: at for at, column in enumerate(kept)}
        self._width = 0 if kept is None else len(kept)
        self._longest = _LONGEST_TITLE if kept is None else _LONGEST_TEXT
        self._columns: dict[str, int] = {}
        self._row: list[Cell] = []
        self._column = -1
        self._place: int | None = None
        self._kind = ""
        self._takes = False
        self._pieces: list[str] = []
        self._depth = self._count = self._length = 0
        self._cell_tag = self._row_tag = self._value_tag = self._text_tag = ""
        self._guide_tag = ""
        self._is_guide = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if name == self._cell_tag:
            place = attributes.get("r")
            column = self._column + 1 if place is None else self._column_of(place)
            self._column = column
            self._kind = attributes.get("t", "n")
            kept = self._kept
            if kept is None:
                self._place = self._widen(column)
            else:
                self._place = kept.get(column)
        elif self._place is not None:
            if name == self._value_tag or name == self._text_tag:
                self._takes = not self._is_guide
            elif name == self._guide_tag:
                self._is_guide = True
        elif name == self._row_tag:
            self._row = [None] * self._width
            self._column = -1
        elif self._depth == 1:
            self._begin(name)
        if self._depth > DEEPEST:
            raise TableError(f"{self._where}: its elements are nested too deeply; it is not read")

    def end(self, name: str) -> None:
        self._depth -= 1
        if self._takes:
            if name == self._value_tag or name == self._text_tag:
                self._takes = False
        elif name == self._cell_tag:
            if self._place is not None:
                if self._pieces:
                    self._row[self._place] = self._value()
                    self._pieces.clear()
                    self._length = 0
                self._place = None
        elif name == self._guide_tag:
            self._is_guide = False
        elif name == self._row_tag:
            self._count += 1
            if self._count > _MOST_ROWS:
                raise TableError(f"{self._where}: has more than {_MOST_ROWS} rows; it is not read")
            self.rows.append(self._row)
            if self._kept is None:
                # A header is all. The rows behind it in the same piece may be as wide as they like.
                self._cell_tag = self._row_tag = ""

    def text(self, text: str) -> None:
        if self._takes and self._length < self._longest:
            self._pieces.append(text)
            self._length += len(text)

    def _begin(self, root: str) -> None:
        prefix, _, local = root.rpartition(":")
        if local != "worksheet":
            raise TableError(f"{self._where}: is no sheet of a workbook")
        prefix = f"{prefix}:" if prefix else ""
        self._cell_tag, self._row_tag = f"{prefix}c", f"{prefix}row"
        self._value_tag, self._text_tag = f"{prefix}v", f"{prefix}t"
        self._guide_tag = f"{prefix}{_GUIDE}"

    def _column_of(self, place: str) -> int:
        letters = place.rstrip("0123456789")
        column = self._columns.get(letters)
        if column is None:
            column = -1
            if len(letters) <= 3 and letters.isascii() and letters.isupper():
                for letter in letters:
                    column = (column + 1) * 26 + ord(letter) - ord("A")
            if not 0 <= column < _MOST_COLUMNS:
                raise TableError(f"{self._where}: has a cell at {place[:20]!r}, where none can be")
            self._columns[letters] = column
        return column

    def _widen(self, column: int) -> int:
        """Make room in a header, which is as wide as its last cell."""
        if column >= _MOST_COLUMNS:
            raise TableError(f"{self._where}: has more than {_MOST_COLUMNS} columns")
        self._row.extend([None] * (column + 1 - len(self._row)))
        return column

    def _value(self) -> Cell:
        text = "".join(self._pieces)
        kind = self._kind
        if kind == "n":
            return to_number(text)
        if kind == "b":
            return text.strip() not in ("0", "false", "")
        if kind == "s":
            if text.strip().isdecimal() and len(text) < 12:
                return SharedText(text)
            raise TableError(f"{self._where}: a cell names its text by {text[:20]!r}")
        return _plain(text)[: self._longest]


class _TextHandlers:
    """Puts the texts of a workbook's list together."""

    def __init__(self, where: str) -> None:
        self.texts: list[str] = []
        self._where = where
        self._pieces: list[str] = []
        self._takes = False
        self._depth = self._length = 0
        self._item_tag = self._text_tag = self._guide_tag = ""
        self._is_guide = False

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if name == self._text_tag:
            self._takes = not self._is_guide
        elif name == self._guide_tag:
            self._is_guide = True
        elif self._depth == 1:
            prefix, _, local = name.rpartition(":")
            if local != "sst":
                raise TableError(f"{self._where}: is no list of texts")
            prefix = f"{prefix}:" if prefix else ""
            self._item_tag, self._text_tag = f"{prefix}si", f"{prefix}t"
            self._guide_tag = f"{prefix}{_GUIDE}"
        if self._depth > DEEPEST:
            raise TableError(f"{self._where}: its elements are nested too deeply; it is not read")

    def end(self, name: str) -> None:
        self._depth -= 1
        if name == self._text_tag:
            self._takes = False
        elif name == self._guide_tag:
            self._is_guide = False
        elif name == self._item_tag:
            self.texts.append(_plain("".join(self._pieces)))
            self._pieces.clear()
            self._length = 0

    def text(self, text: str) -> None:
        if self._takes and self._length < _LONGEST_TEXT:
            self._pieces.append(text)
            self._length += len(text)


def _plain(text: str) -> str:
    """Return a text of a cell as it was meant: `_x0041_` stands for a sign by its number."""
    if "_x" in text:
        text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    return text[:_LONGEST_TEXT]
