"""Every table that msprobe 8.2.1 made of the peer dumps comes out of ours, cell by cell."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from goldens import (
    DEVIATIONS,
    Golden,
    absolute_config,
    agrees,
    all_goldens,
    expected_rows,
)

from conftest import REPOSITORY
from tensorprobe.compare import compare

GOLDENS = all_goldens()
# The peer's fuzzy matching of statistics matches nothing; what it should give is the exact table.
BROKEN = "mlp/L1_statistics_f"
# 8.2.1 does not know the numbered gradients of 26.2.0's dumps and leaves their rows out.
UNKNOWN_GRADIENTS = ".parameters_grad.0."


def compare_as(golden: Golden, folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Compare with the golden's options; return our rows and titles."""
    mapping = golden.path.parent / "data_mapping.yaml"
    config = absolute_config(golden, folder)
    compare(
        config,
        output=folder,
        fuzzy=golden.options.endswith("_f"),
        mapping=mapping if golden.options.endswith("_dm") else None,
        highlight=golden.is_highlighted,
        stack=_stack(golden),
        formats=("csv", "xlsx") if golden.is_highlighted else ("csv",),
    )
    # Several ranks may have come out; the golden's name says which is meant.
    stem = golden.path.name.rpartition("_")[0]
    files = list(folder.glob(f"{stem}_2*.csv"))
    if not files and "rank_" in golden.path.name:
        files = list(folder.glob("compare_result_2*.csv"))
    assert len(files) == 1, (stem, list(folder.iterdir()))
    with files[0].open(newline="") as text:
        reader = csv.DictReader(text)
        rows = list(reader)
        titles = list(reader.fieldnames or ())
    colours = colours_of(files[0].with_suffix(".xlsx")) if golden.is_highlighted else {}
    for number, row in enumerate(rows):
        row["colour"] = colours.get(number, "")
    return rows, titles


def _stack(golden: Golden) -> bool | None:
    # For the tables of many ranks the peer was given no stack files, to keep them small.
    if golden.name.startswith("dist/"):
        return False
    return True if golden.options.endswith("_s") else None


def colours_of(path: Path) -> dict[int, str]:
    import openpyxl

    names = {"FFFF0000": "red", "00FFFF00": "yellow"}
    sheet = openpyxl.load_workbook(path)["compare_result"]
    found = {}
    for number, row in enumerate(sheet.iter_rows(min_row=2)):
        fills = {cell.fill.fgColor.rgb if cell.fill.fill_type else "" for cell in row}
        # Whole rows are filled, or none of their cells.
        assert len(fills) == 1
        if fill := fills.pop():
            found[number] = names[fill]
    return found


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_all_cells_and_colours_are_those_of_the_golden(golden: Golden, tmp_path: Path) -> None:
    rows, titles = compare_as(golden, tmp_path)
    rows = [row for row in rows if UNKNOWN_GRADIENTS not in row["NPU Name"]]
    source = golden
    if golden.name.startswith(BROKEN + "/"):
        source = next(g for g in GOLDENS if g.name.startswith("mlp/L1_statistics/"))
    wanted = list(expected_rows(source, Counter()))
    if not golden.name.startswith(BROKEN + "/"):
        assert titles == golden.rows()[0]
    assert [row["NPU Name"] for row in rows] == [row["NPU Name"] for row in wanted]
    wrong = []
    for row, want in zip(rows, wanted, strict=True):
        loose = want.pop("loose", "")
        for title, cell in want.items():
            tolerance = 2e-3 if title == loose else 1e-6
            if not agrees(row[title], cell, tolerance):
                wrong.append((row["NPU Name"], title, row[title], cell))
    assert wrong == []


def test_the_goldens_are_there() -> None:
    assert len(GOLDENS) >= 6


def test_every_deviation_happens_and_is_documented() -> None:
    used: Counter[str] = Counter()
    for golden in GOLDENS:
        for _ in expected_rows(golden, used):
            pass
    names = {deviation.__name__ for deviation in DEVIATIONS}
    if len(GOLDENS) > 30:  # the few of a clone alone do not show them all
        assert set(used) == names
    text = (REPOSITORY / "docs" / "deviations.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
