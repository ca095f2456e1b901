"""The two files of a pre-check, written row by row, and taken up again after an interruption.

A call's details are written before its verdict. What follows the last whole verdict, in either
file, was cut off in the middle and is written anew; so an interrupted run that is resumed leaves
the same bytes as one that was not. Every call has a line in the details, also one that was not
judged: where the details lack a call, it and all behind it are checked again. A file that an
earlier version began has fewer columns, and goes on with those.
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tensorprobe.errors import DumpError, ReportError
from tensorprobe.precheck.outcome import CallResult, OutputRow
from tensorprobe.report.accuracy_titles import (
    DETAIL_TITLES,
    FIRST_DETAIL_TITLES,
    FIRST_RESULT_TITLES,
    METRIC_TITLES,
    RESULT_TITLES,
)
from tensorprobe.report.csv_table import harmless_cell

__all__ = ["ResultFiles", "cell_of", "make_folder", "new_stamp", "stamp_of"]

# Spreadsheets take a file without it for another encoding.
_MARK = "\ufeff"
_NAME = re.compile(r"accuracy_checking_(?:result|details)_(?:.*_)?(?P<stamp>[0-9]{14})\.csv")
# The columns of a detail but for its name, dtypes, shape, status and message.
_METRICS = len(DETAIL_TITLES) - 6


def stamp_of(path: Path) -> str:
    """Return the time in a result file's name.

    >>> stamp_of(Path("out/accuracy_checking_result_20260102030405.csv"))
    '20260102030405'

    Raises:
        DumpError: it is not the name of a result file.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise DumpError(
            f"{path} is no result of a pre-check; wanted accuracy_checking_result_*.csv"
        )
    return match["stamp"]


def new_stamp(folder: Path) -> str:
    """Return the time for the names of new results: that of now, or the next that is free."""
    now = time.time()
    while True:
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
        if not any(folder.glob(f"accuracy_checking_*_{stamp}.*")):
            return stamp
        now += 1


def make_folder(folder: Path) -> None:
    """Make a folder that results go to, if there is none.

    Raises:
        ReportError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ReportError(
            f"the folder {folder} cannot be made: {err.strerror}; name another one"
        ) from err


class ResultFiles:
    """The result and details files of one part of a dump, open for writing at their end.

    Args:
        folder: where they are.
        stamp: the time in their names.
        label: what tells this part from others, in their names; empty for a single one.

    Raises:
        DumpError: a file of that name holds something else.
        ReportError: the files cannot be written.
    """

    def __init__(self, folder: Path, stamp: str, label: str = "") -> None:
        middle = f"{label}_" if label else ""
        self.result_path = folder / f"accuracy_checking_result_{middle}{stamp}.csv"
        self.details_path = folder / f"accuracy_checking_details_{middle}{stamp}.csv"
        self.done: list[tuple[str, ...]] = []
        make_folder(folder)
        result_ends, details_ends = [0], [0]
        result_width, details_width = len(RESULT_TITLES), len(DETAIL_TITLES)
        for row, end in _whole_rows(self.result_path, (RESULT_TITLES, FIRST_RESULT_TITLES)):
            if not result_ends[0]:
                result_width, result_ends[0] = len(row), end
            else:
                self.done.append(tuple(row))
                result_ends.append(end)
        places = {row[0]: place for place, row in enumerate(self.done, 1)}
        for row, end in _whole_rows(self.details_path, (DETAIL_TITLES, FIRST_DETAIL_TITLES)):
            if not details_ends[0]:
                details_width, details_ends[0] = len(row), end
                continue
            place = _place_of(row[0], places)
            if place is None or place - len(details_ends) not in (-1, 0):
                break
            details_ends[place:] = [end]
        kept = len(details_ends) - 1
        if kept < len(self.done):
            # Of the last call that has details, some may be lacking.
            kept = max(kept - 1, 0)
        del self.done[kept:]
        result_end = result_ends[kept] if details_ends[0] else 0
        details_end = details_ends[kept]
        try:
            self._result = _open_at(self.result_path, result_end)
            self._details = _open_at(self.details_path, details_end)
        except OSError as err:
            raise ReportError(
                f"{err.filename or folder} cannot be written: {err.strerror}"
            ) from err
        self._is_new = result_ends == [0]
        # A file that an earlier version began goes on with the columns that it has.
        self._details_width = details_width if details_end else len(DETAIL_TITLES)
        self._result_width = result_width if result_end else len(RESULT_TITLES)
        if not details_end:
            self._append(self._details, [DETAIL_TITLES], mark=_MARK)
        if not result_end:
            self._append(self._result, [RESULT_TITLES], mark=_MARK)

    def __enter__(self) -> ResultFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._result.close()
        self._details.close()
        if error[0] is not None and self._is_new:
            # It failed before the first call: nobody wants to resume that.
            for path in (self.result_path, self.details_path):
                path.unlink(missing_ok=True)

    def write(self, shown_name: str, result: CallResult) -> None:
        """Add one call: its details, then its verdict."""
        self._is_new = False
        rows = result.rows or (_row_of_whole(result),)
        self._append(self._details, [_detail_cells(row)[: self._details_width] for row in rows])
        verdicts = (shown_name, result.forward, result.backward or " ", result.message)
        older = (result.older_forward, result.older_backward)
        self._append(self._result, [(*verdicts, *older)[: self._result_width]])

    @staticmethod
    def _append(file: BinaryIO, rows: Sequence[Sequence[str]], *, mark: str = "") -> None:
        if not rows:
            return
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([cell_of(cell) for cell in row] for row in rows)
        file.write((mark + text.getvalue()).encode(errors="backslashreplace"))
        file.flush()


def _detail_cells(row: OutputRow) -> tuple[str, ...]:
    metrics, others = row.cells[: len(METRIC_TITLES)], row.cells[len(METRIC_TITLES) :]
    start = (row.name, row.reference_dtype, row.device_dtype, row.shape)
    return (*start, *metrics, row.status, row.message, *others)


def cell_of(text: str) -> str:
    """Return a text as a cell holds it: one line and no formula."""
    return harmless_cell(" ".join(text.split()) if text != " " else text)


def _row_of_whole(result: CallResult) -> OutputRow:
    """Return the line of a call that has no results: it was not judged, or it ended its process."""
    return OutputRow(result.name, "", "", "", ("",) * _METRICS, result.forward, result.message)


def _place_of(value_name: str, places: Mapping[str, int]) -> int | None:
    """Return the place of the call whose name a value's name begins with; None if it is not there.

    >>> _place_of("Torch.add.1.forward.output.0", {"Torch.add.1": 7})
    7
    """
    end = len(value_name)
    while end > 0:
        if value_name[:end] in places:
            return places[value_name[:end]]
        end = value_name.rfind(".", 0, end)
    return None


def _whole_rows(path: Path, known: Sequence[tuple[str, ...]]) -> Iterator[tuple[list[str], int]]:
    """Yield each whole line of a file as cells, and where it ends: first its titles.

    Raises:
        DumpError: these are none of those that are known.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    end = width = 0
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        end += len(line)
        text = line.decode("utf-8-sig", errors="replace")
        cells = next(csv.reader([text]), [])
        if not width:
            if tuple(cells) not in known:
                raise DumpError(f"{path} is no result of this pre-check: its titles are others")
            width = len(cells)
        if len(cells) != width:
            return
        yield cells, end


def _open_at(path: Path, end: int) -> BinaryIO:
    """Open a file for writing behind what is kept of it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.ftruncate(file, end)
    os.lseek(file, end, os.SEEK_SET)
    return os.fdopen(file, "wb")
