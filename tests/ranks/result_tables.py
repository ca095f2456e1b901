"""Results of comparing ranks, as tensorprobe writes them, and what a merged workbook holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openpyxl

from tensorprobe.report.compare_columns import Mode, columns_of
from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.table import Cell, Table
from tensorprobe.report.xlsx import write_xlsx

TIME = "20260102030405"
REDUCE = "Distributed.all_reduce.0.forward.output.0"
LINEAR = "Functional.linear.0.forward.input.0"
Rows = Sequence[Mapping[str, Cell]]
Sheets = dict[str, list[tuple[Any, ...]]]


def row(name: str, diff: Cell = 0.5, **cells: Cell) -> dict[str, Cell]:
    """A row: the first metric is `diff`; NPU_max stands for the column NPU max."""
    named = {title.replace("_", " "): cell for title, cell in cells.items()}
    return {
        "NPU Name": name,
        "Max diff": diff,
        "Cosine": diff,
        "NPU max": 2,
        "Bench max": 3,
    } | named


def write_result(
    folder: Path,
    rank: int | str,
    rows: Rows,
    *,
    mode: Mode = "statistics",
    ending: str = "xlsx",
    time: str = TIME,
) -> Path:
    """Write the result of one rank under the name that `compare` gives it."""
    titles = columns_of(mode, with_stack=False)
    table = Table("compare_result", titles, [[one.get(title) for title in titles] for one in rows])
    folder.mkdir(exist_ok=True)
    path = folder / f"compare_result_rank{rank}_{time}.{ending}"
    if ending == "csv":
        write_csv(path, table)
    else:
        write_xlsx(path, [table])
    return path


def write_config(folder: Path, text: str = "api:\n- Distributed\n") -> Path:
    path = folder / "merge.yaml"
    path.write_text(text)
    return path


def sheets_of(path: Path) -> Sheets:
    book = openpyxl.load_workbook(path)
    return {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book}
