"""The real merge_result of msprobe 8.2.1 and ours, of the same files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from result_tables import Sheets, sheets_of, write_config

from conftest import peer_root
from tensorprobe import compare, merge_results
from tensorprobe.errors import TableError
from tensorprobe.ranks.result_file import read_head
from tensorprobe.report.compare_columns import Mode

PEER = os.environ.get("TENSORPROBE_PEER_PYTHON", "")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PEER, reason="TENSORPROBE_PEER_PYTHON names no Python with msprobe"),
]
EVERYTHING = "api:\n- Functional\n- Tensor\n- Torch\n- Module\n- Distributed\n"
NUMBER = re.compile(r"(?<=:)-?[0-9]+\.[0-9]+(e-?[0-9]+)?(?= |$)")


def merge_with_msprobe(results: Path, config: Path, output: Path) -> Sheets:
    answer = subprocess.run(
        [
            *(str(Path(PEER).with_name("msprobe")), "-f", "pytorch", "merge_result"),
            *("-i", results, "-o", output, "-config", config),
        ],
        capture_output=True,
        text=True,
        check=False,
        # Our own command of that name must not come before it.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (workbook,) = output.glob("*.xlsx")
    return sheets_of(workbook)


def sixteen_digits(number: float) -> str:
    short = float(f"{number:.16g}")
    return str(int(short)) if short.is_integer() else str(short)


def plain(cell: Any) -> Any:
    """Return a cell without what docs/merge.md lists: tabs, points of whole numbers, 17 digits."""
    if isinstance(cell, str):
        return NUMBER.sub(lambda found: sixteen_digits(float(found[0])), cell.replace("\t", ""))
    is_number = isinstance(cell, float) and not isinstance(cell, bool)
    return pytest.approx(cell, rel=1e-15, abs=0) if is_number else cell


def assert_alike(ours: Sheets, theirs: Sheets) -> None:
    assert list(ours) == list(theirs)
    for title, rows in theirs.items():
        for mine, wanted in zip(ours[title], rows, strict=True):
            assert mine == tuple(map(plain, wanted)), title


@pytest.mark.parametrize("mode", ["tensor", "statistics"])
def test_every_comparison_of_msprobe_is_merged_as_by_msprobe(mode: Mode, tmp_path: Path) -> None:
    """Comparisons that have nothing to do with each other, as if they were ranks."""
    results = tmp_path / "results"
    results.mkdir()
    for path in sorted((peer_root() / "compare-8.2.1").glob("*/*/compare_result*.xlsx")):
        try:
            if read_head(path).mode != mode:
                continue
        except TableError:
            continue
        number = len(list(results.iterdir()))
        copy = results / f"compare_result_rank{number}_20260102030405.xlsx"
        shutil.copyfile(path, copy)
        copy.chmod(0o640)
    assert len(list(results.iterdir())) > 1
    config = write_config(tmp_path, EVERYTHING)
    (step,) = merge_results(results, config, tmp_path / "o").steps
    assert_alike(sheets_of(step.file), merge_with_msprobe(results, config, tmp_path / "peer"))


@pytest.mark.parametrize("kind", ["mix_statistics", "L1_tensor"])
def test_msprobe_merges_our_own_results_as_we_do(kind: str, tmp_path: Path) -> None:
    dumps = peer_root() / "msprobe-8.2.1" / "dist" / kind
    if not dumps.is_dir():
        pytest.skip("needs the larger collection of dumps: set TENSORPROBE_SHARED")
    results = tmp_path / "results"
    compare(dumps / "npu" / "step0", dumps / "bench" / "step0", results, advise=False)
    config = write_config(tmp_path, EVERYTHING)
    (step,) = merge_results(results, config, tmp_path / "o").steps
    assert_alike(sheets_of(step.file), merge_with_msprobe(results, config, tmp_path / "peer"))
