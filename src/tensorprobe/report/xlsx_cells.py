"""The cells of a sheet as XML text, quickly.

    row ─► the compiled row writer (report.row_text), where it is there and nothing is unusual
        └► the types of its cells ─► a form made once per combination ─► form % values

Most rows of a table have the same types in the same places, so a row costs one formatting call. A
row with a number that a sheet cannot hold, or a single filled cell, is put together cell by cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from tensorprobe.report.row_text import load_row_text
from tensorprobe.report.table import Cell, Lines
from tensorprobe.system.clean_text import clean_text

__all__ = ["LONGEST_TEXT", "RowWriter", "column_letters"]

LONGEST_TEXT = 32767
"""Excel refuses a file with a longer text in one cell; it counts UTF-16 units."""

_CUT_MARK = " … (cut)"
# Whole numbers above are no longer distinct in a sheet, whose numbers are all float64.
_LARGEST_EXACT = 2**53
# A sheet has few; a hostile one must not fill the memory with them.
_KEPT_FORMS = 10_000
_KEPT_CHARACTERS = 8_000_000
_ROW_NUMBER = "\x00"
_SPECIAL = re.compile(r"[&<>\ud800-\udfff\ufffe\uffff]|_x[0-9A-Fa-f]{4}_")
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# How a cell goes on after its place and style, where its type alone decides.
_NUMBER_END = "><v>%r</v></c>"
_BOOL_END = ' t="b"><v>%d</v></c>'
_TEXT_END = "%s</c>"


def column_letters(index: int) -> str:
    """Return the name of a column, counted from 0.

    >>> column_letters(0), column_letters(25), column_letters(26), column_letters(702)
    ('A', 'Z', 'AA', 'AAA')
    """
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(65 + letter) + letters
    return letters


class _Texts(dict[str, str]):
    """What follows a cell's place, by its text; made once for a text that comes again."""

    def __init__(self) -> None:
        super().__init__()
        self._characters = 0

    def __missing__(self, text: str) -> str:
        made = _text_cell(text)
        self._characters += len(made)
        if self._characters > _KEPT_CHARACTERS:
            self.clear()
            self._characters = len(made)
        self[text] = made
        return made


def _text_cell(text: str) -> str:
    if not text:
        return ">"
    # A sheet drops white space at the ends unless it is told not to.
    keep = "" if text.isprintable() and text.strip() == text else ' xml:space="preserve"'
    shown = _cut(text if isinstance(text, Lines) else clean_text(text))
    return f' t="inlineStr"><is><t{keep}>{_SPECIAL.sub(_replaced, shown)}</t></is>'


def _cut(text: str) -> str:
    if len(text) * 2 <= LONGEST_TEXT:
        return text
    units = text.encode("utf-16-le", "surrogatepass")
    if len(units) <= LONGEST_TEXT * 2:
        return text
    kept = units[: (LONGEST_TEXT - len(_CUT_MARK)) * 2].decode("utf-16-le", "surrogatepass")
    is_half = "\ud800" <= kept[-1] <= "\udbff"
    return (kept[:-1] if is_half else kept) + _CUT_MARK


def _replaced(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1:
        # Excel reads _x0041_ as A; so the underscore itself is written that way.
        return "_x005F" + found
    return _NAMED.get(found, "�")


class _Form(NamedTuple):
    """How rows of certain types are written.

    Attributes:
        template: the row's XML with a place for its number and for every value.
        texts: the columns with texts.
        numbers: gives the numbers of a row; None where there are none.
        has_none: whether some columns are empty.
    """

    template: str
    texts: tuple[int, ...]
    numbers: Callable[[Any], Any] | None
    has_none: bool


class RowWriter:
    """Turns rows into the `<row>` elements of one sheet.

    >>> writer = RowWriter()
    >>> writer.row(2, ("a<b", 0.5, True, None)).decode()
    '<row r="2"><c r="A2" t="inlineStr"><is><t>a&lt;b</t></is></c><c r="B2"><v>0.5</v></c><c r="C2" t="b"><v>1</v></c></row>'
    """  # noqa: E501

    def __init__(self) -> None:
        self._texts = _Texts()
        self._forms: dict[tuple[Any, ...], _Form | None] = {}
        self._compiled = load_row_text()

    def row(self, number: int, row: Sequence[Cell], style: int = 0) -> bytes:
        """Return one row, every cell in the same style.

        Args:
            number: the row's number in the sheet, from 1.
            row: its cells.
            style: the number of a style of the workbook.
        """
        if self._compiled is not None:
            made = self._compiled.sheet_row(number, row, style, self._texts)
            if made is not None:
                return made
        types = (style, *map(type, row))
        try:
            form = self._forms[types]
        except KeyError:
            if len(self._forms) == _KEPT_FORMS:
                self._forms.clear()
            form = self._forms[types] = _make_form(types)
        if form is None:
            return self.styled_row(number, row, [style] * len(row))
        template, text_columns, numbers, has_none = form
        if numbers is not None:
            try:
                # False also where one is NaN.
                is_plain = sum(map(abs, numbers(row))) < _LARGEST_EXACT
            except OverflowError:
                is_plain = False
            if not is_plain:
                return self.styled_row(number, row, [style] * len(row))
        texts = self._texts
        values = [*row]
        for column in text_columns:
            values[column] = texts[values[column]]  # type: ignore[index]
        if has_none:
            values = [value for value in values if value is not None]
        return (template.replace(_ROW_NUMBER, str(number)) % tuple(values)).encode()

    def styled_row(self, number: int, row: Sequence[Cell], styles: Sequence[int]) -> bytes:
        """Return one row whose cells have a style each."""
        cells = [
            self._cell(f"{column_letters(index)}{number}", value, style)
            for index, (value, style) in enumerate(zip(row, styles, strict=True))
        ]
        return f'<row r="{number}">{"".join(cells)}</row>'.encode()

    def _cell(self, place: str, value: Any, style: int) -> str:
        start = _cell_start(place, style)
        if value is None:
            return f"{start}/>" if style else ""
        if isinstance(value, bool):
            return start + _BOOL_END % value
        if isinstance(value, int):
            if abs(value) <= _LARGEST_EXACT:
                return start + _NUMBER_END % int(value)
            value = _digits(value)
        elif isinstance(value, float):
            if math.isfinite(value):
                return start + _NUMBER_END % float(value)
            value = str(float(value))
        if isinstance(value, Lines):
            return start + _TEXT_END % _text_cell(value)
        return start + _TEXT_END % self._texts[str(value)]


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        # More digits than Python agrees to print.
        return hex(value)


def _cell_start(place: str, style: int) -> str:
    return f'<c r="{place}" s="{style}"' if style else f'<c r="{place}"'


def _make_form(types: tuple[Any, ...]) -> _Form | None:
    """Make the form of rows with these types; None if one of them needs a closer look."""
    style, *kinds = types
    ends = {float: _NUMBER_END, int: _NUMBER_END, bool: _BOOL_END, str: _TEXT_END}
    parts = []
    for index, kind in enumerate(kinds):
        start = _cell_start(column_letters(index) + _ROW_NUMBER, style)
        if kind is type(None):
            parts.append(f"{start}/>" if style else "")
        elif kind in ends:
            parts.append(start + ends[kind])
        else:
            return None
    numbers = [index for index, kind in enumerate(kinds) if kind in (float, int)]
    # With one index itemgetter gives the value alone, so it is asked twice for it.
    getter = itemgetter(*numbers, numbers[0]) if numbers else None
    texts = tuple(index for index, kind in enumerate(kinds) if kind is str)
    template = f'<row r="{_ROW_NUMBER}">{"".join(parts)}</row>'
    return _Form(template, texts, getter, type(None) in kinds)
