"""The workbooks that msprobe 8.2.1 itself merged, cell by cell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from result_tables import Sheets, sheets_of

from conftest import DATA, peer_root
from tensorprobe import compare, merge_results

DIST = DATA / "peer_dumps" / "compare-8.2.1" / "dist"
GOLDENS = {
    "merge_statistics": "mix_statistics",
    "merge_statistics_subset": "mix_statistics",
    "merge_tensor": "L1_tensor",
    "merge_tensor_subset": "L1_tensor",
}


def golden_of(name: str) -> Sheets:
    (path,) = (DIST / name).glob("*.xlsx")
    return sheets_of(path)


@pytest.mark.parametrize("golden", GOLDENS)
def test_what_msprobe_merged_is_merged_alike(golden: str, tmp_path: Path) -> None:
    merged = merge_results(DIST / GOLDENS[golden], DIST / golden / "config.yaml", tmp_path)
    assert (merged.notes, merged.problems) == ((), ())
    (step,) = merged.steps
    assert step.ranks == (0, 1, 2, 3)
    ours, theirs = sheets_of(step.file), golden_of(golden)
    assert list(ours) == list(theirs) == list(step.sheets)
    for title, rows in theirs.items():
        assert ours[title] == rows
        # 1 and True are equal, and look different.
        assert [list(map(type, row)) for row in ours[title]] == [
            list(map(type, row)) for row in rows
        ]


def test_every_golden_there_is_has_a_test() -> None:
    found = {path.parent.name for path in peer_root().glob("compare-8.2.1/*/merge_*/config.yaml")}
    assert found == set(GOLDENS)


def test_a_csv_of_msprobe_is_merged_as_its_workbook(tmp_path: Path) -> None:
    everything = peer_root() / "compare-8.2.1" / "dist" / "mix_statistics"
    tables = sorted(everything.glob("*.csv"))
    if not tables:
        pytest.skip("needs the larger collection of dumps: set TENSORPROBE_SHARED")
    for table in tables:
        shutil.copy(table, tmp_path)
    config = DIST / "merge_statistics" / "config.yaml"
    (step,) = merge_results(tmp_path, config, tmp_path / "o").steps
    assert sheets_of(step.file) == golden_of("merge_statistics")


class About:
    """A percentage in a text, but for rounding."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str) or not other.endswith("%"):
            return False
        return float(other[:-1]) == pytest.approx(float(self.text[:-1]), rel=1e-9)

    __hash__ = None  # type: ignore[assignment]


def about(cell: Any) -> Any:
    """Return what equals a cell but for rounding: our tables keep all digits."""
    if isinstance(cell, str):
        return About(cell) if cell.endswith("%") else cell
    is_number = isinstance(cell, float | int) and not isinstance(cell, bool)
    return pytest.approx(cell, rel=1e-6, abs=1e-6) if is_number else cell


@pytest.mark.parametrize("golden", ["merge_statistics", "merge_tensor"])
@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_our_own_comparison_is_merged_as_msprobes(golden: str, ending: str, tmp_path: Path) -> None:
    dumps = peer_root() / "msprobe-8.2.1" / "dist" / GOLDENS[golden]
    if not dumps.is_dir():
        pytest.skip("needs the larger collection of dumps: set TENSORPROBE_SHARED")
    sides = (dumps / "npu" / "step0", dumps / "bench" / "step0")
    compare(*sides, tmp_path / "results", formats=[ending], advise=False)
    merged = merge_results(tmp_path / "results", DIST / golden / "config.yaml", tmp_path / "o")
    assert (merged.notes, merged.problems) == ((), ())
    ours, theirs = sheets_of(merged.steps[0].file), golden_of(golden)
    assert list(ours) == list(theirs)
    for title, rows in theirs.items():
        for mine, wanted in zip(ours[title], rows, strict=True):
            assert mine == tuple(map(about, wanted)), title
