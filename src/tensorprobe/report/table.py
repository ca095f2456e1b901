"""A table as every writer takes it: a title, a header, and rows that may be made as they are read.

    Table ─► write_xlsx (report.xlsx)   sheets, colours, filter
          ├► write_csv (report.csv_table)
          └► write_json (report.json_table)

A table may be longer than memory: rows are taken one after the other and never kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tensorprobe.errors import ReportError
from tensorprobe.system.clean_text import clean_text
from tensorprobe.system.new_file import new_file

__all__ = ["Cell", "Fill", "Lines", "Table", "new_report", "reporting_trouble"]


class Lines(str):
    r"""A cell of several lines; in every other text an end of a line is somebody else's.

    >>> Lines.of(["far off", "a\x1b\nb"])
    'far off\na��b'
    """

    __slots__ = ()

    @classmethod
    def of(cls, lines: Iterable[str]) -> Lines:
        """Return a cell of some lines, each of which stays one."""
        return cls("\n".join(map(clean_text, lines)))


Cell: TypeAlias = str | float | int | bool | None
Fill: TypeAlias = Literal["red", "yellow"]


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        title: what the sheet is called.
        header: the columns' titles.
        rows: the cells, row by row; None is an empty cell.
        fills: what stands out: a row by its number from 0, or one cell by (row, column). It is
            asked when a row is written, so that it may grow while the rows are made.
        widths: how many characters wide the columns are; empty: as their first rows need.
    """

    title: str
    header: tuple[str, ...]
    rows: Iterable[Sequence[Cell]]
    fills: Mapping[int | tuple[int, int], Fill] = field(default_factory=dict)
    widths: tuple[float, ...] = ()


@contextmanager
def new_report(path: str | os.PathLike[str]) -> Iterator[int]:
    """Give the descriptor of a result file that appears when it is whole.

    Raises:
        ReportError: the system refused to make, fill or name it.
    """
    target = Path(path)
    with reporting_trouble(target), new_file(target) as descriptor:
        yield descriptor


@contextmanager
def reporting_trouble(path: str | os.PathLike[str]) -> Iterator[None]:
    """Tell what the system has against writing a result file.

    Raises:
        ReportError: it refused something in the block.
    """
    try:
        yield
    except (OSError, ValueError) as err:
        if isinstance(err, ValueError) and "embedded null" not in str(err):
            raise
        reason = err.strerror if isinstance(err, OSError) else "no file can have this name"
        raise ReportError(
            f"{os.fspath(path)!r} cannot be written: {reason}; check the folder and its free space"
        ) from err
