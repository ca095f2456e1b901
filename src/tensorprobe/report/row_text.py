"""The one place that says whether the compiled row writer is there, and hands it out.

`_row_text.c` is compiled when tensorprobe is installed. Without a C compiler Python writes the same
rows, ten times slower.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, cast

__all__ = ["RowText", "load_row_text"]

_SWITCH = "TENSORPROBE_NO_KERNEL"
_FUNCTIONS = ("csv_row", "sheet_row", "float_text", "set_powers")


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

    def float_text(self, number: float, /) -> str | None:
        """Return a finite number as `repr` does."""
        ...

    def set_powers(self, table: bytes, /) -> None:
        """Take the table of powers of ten."""
        ...


def load_row_text() -> RowText | None:
    """Return the compiled row writer, or None where it is not there or was turned off."""
    return None if os.environ.get(_SWITCH, "") not in ("", "0") else _import_row_text()


@cache
def _import_row_text() -> RowText | None:
    try:
        module = importlib.import_module("tensorprobe.report._row_text")
    except ImportError:
        return None
    if not all(hasattr(module, name) for name in _FUNCTIONS):
        # An editable install keeps the old file when _row_text.c changes.
        return None
    writer = cast(RowText, module)
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
