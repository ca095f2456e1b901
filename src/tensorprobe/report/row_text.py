"""The one place that says whether the compiled row writer is there, and hands it out.

`_row_text.c` is compiled when tensorprobe is installed. Without a C compiler Python writes the same
rows, ten times slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from tensorprobe.system.extensions import load_compiled
from tensorprobe.system.powers_of_ten import powers_of_ten

__all__ = ["RowText", "load_row_text"]

_FUNCTIONS = ("csv_row", "sheet_row", "set_powers")


class RowText(Protocol):
    """What `_row_text.c` offers; None from any of them asks Python to write the row."""

    def csv_row(self, row: Any, /) -> bytes | None:
        """Return a row as a line of CSV."""
        ...

    def sheet_row(
        self, number: int, row: Any, style: int, texts: Mapping[str, str], /
    ) -> bytes | None:
        """Return a row as a `<row>` of a sheet; `texts` knows the cells of unusual texts."""
        ...

    def set_powers(self, table: bytes, /) -> None:
        """Take the table of powers of ten."""
        ...


def load_row_text() -> RowText | None:
    """Return the compiled row writer, or None where it is not there or was turned off."""
    writer = load_compiled("tensorprobe.report._row_text", *_FUNCTIONS)
    return None if writer is None else _set_up(writer)


@cache
def _set_up(writer: RowText) -> RowText:
    writer.set_powers(powers_of_ten())
    return writer
