"""The one place that says whether the compiled row writer is there, and hands it out.

`_row_text.c` is compiled when tensorprobe is installed. Without a C compiler Python writes the same
rows, ten times slower.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from tensorprobe.compiled import load_compiled

__all__ = ["RowText", "load_row_text", "number_texts"]

_FUNCTIONS = ("csv_row", "sheet_row", "float_texts", "set_powers")


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

    def float_texts(self, numbers: list[float], ending: str, /) -> list[str] | None:
        """Return finite numbers as `repr` does, each with the same ending."""
        ...

    def set_powers(self, table: bytes, /) -> None:
        """Take the table of powers of ten."""
        ...


def load_row_text() -> RowText | None:
    """Return the compiled row writer, or None where it is not there or was turned off."""
    writer = load_compiled("tensorprobe.report._row_text", *_FUNCTIONS)
    return None if writer is None else _set_up(writer)


def number_texts(numbers: list[float], ending: str = "") -> list[str]:
    """Return many numbers as Python prints them, each with the same ending.

    >>> number_texts([0.5, 1e-05, float("inf")], "%")
    ['0.5%', '1e-05%', 'inf%']
    """
    compiled = load_row_text()
    texts = None if compiled is None else compiled.float_texts(numbers, ending)
    return [f"{number}{ending}" for number in numbers] if texts is None else texts


@cache
def _set_up(writer: RowText) -> RowText:
    writer.set_powers(_powers_of_ten())
    return writer


def _powers_of_ten() -> bytes:
    """Return 10**k for k from -292 to 324, as 128 bits of which the first is set, rounded up."""
    table = bytearray()
    for exponent in range(-292, 325):
        above, below = (10**exponent, 1) if exponent >= 0 else (1, 10**-exponent)
        shift = 127 - (exponent * 1741647 >> 19)  # 127 less the whole part of log2(10**exponent)
        numerator = above << max(shift, 0)
        denominator = below << max(-shift, 0)
        table += struct.pack("=QQ", *divmod(-(-numerator // denominator), 1 << 64))
    return bytes(table)
