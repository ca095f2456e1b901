"""Write a table as strict JSON: a list with one object per row, one row per line."""

from __future__ import annotations

import json
import os
from itertools import islice

from tensorprobe.report.table import Table, new_report
from tensorprobe.report.value_text import json_number

__all__ = ["write_json"]

_ROWS_PER_WRITE = 2000


def write_json(path: str | os.PathLike[str], table: Table) -> None:
    """Write one table; the file appears when it is whole. What is not finite becomes a text.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "a.json")
    ...     write_json(file, Table("a", ("name", "max"), [("x", 0.5), ("y", float("nan"))]))
    ...     print(file.read_text(), end="")
    [
    {"name": "x", "max": 0.5},
    {"name": "y", "max": "NaN"}
    ]

    Raises:
        ReportError: the file cannot be written.
    """
    keys = _distinct(table.header)
    encode = json.JSONEncoder(allow_nan=False).encode
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        rows = iter(table.rows)
        before = "[\n"
        while batch := list(islice(rows, _ROWS_PER_WRITE)):
            lines = []
            for row in batch:
                try:
                    lines.append(encode(dict(zip(keys, row, strict=False))))
                except (ValueError, TypeError):  # what is not finite, and complex numbers
                    lines.append(encode(dict(zip(keys, map(json_number, row), strict=False))))
            file.write((before + ",\n".join(lines)).encode())
            before = ",\n"
        file.write(b"[]\n" if before == "[\n" else b"\n]\n")


def _distinct(header: tuple[str, ...]) -> tuple[str, ...]:
    """Number the titles that come again: an object has each key once."""
    seen: dict[str, int] = {}
    keys = []
    for title in header:
        seen[title] = seen.get(title, 0) + 1
        keys.append(title if seen[title] == 1 else f"{title} ({seen[title]})")
    return tuple(keys)
