"""The command `msprobe`, with the arguments that its manual shows."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest

import tensorprobe
import tensorprobe_compat
from conftest import DATA, REPOSITORY
from msprobe.msprobe import main

PEER = DATA / "peer_dumps/msprobe-8.2.1"
LINEAR = "Functional.linear.0.forward"


@pytest.fixture
def compare_json(tmp_path: Path) -> Path:
    sides = (PEER / "mlp/L1_statistics" / side for side in ("npu", "bench"))
    npu, bench = (str(next(side.rglob("dump.json"))) for side in sides)
    file = tmp_path / "compare.json"
    stack = npu.replace("dump.json", "stack.json")
    file.write_text(json.dumps({"npu_path": npu, "bench_path": bench, "stack_path": stack}))
    return file


def names_in(folder: Path) -> list[str]:
    return sorted(re.sub(r"\d{14}", "TIME", file.name) for file in folder.iterdir())


def titles_in(folder: Path) -> list[object]:
    (file,) = folder.glob("*.xlsx")
    return [cell.value for cell in openpyxl.load_workbook(file)["compare_result"][1]]


def test_the_command_of_the_manual(
    compare_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-f", "pytorch", "compare", "-i", "./compare.json"]
    assert main([*words, "-o", "./mine", "-s"]) == 0
    assert names_in(tmp_path / "mine") == ["advisor_TIME.txt", "compare_result_TIME.xlsx"]
    assert "NPU_Stack_Info" in titles_in(tmp_path / "mine")
    # Without a folder, with -o alone, and without the framework.
    assert main([*words, "-c"]) == 0
    assert names_in(tmp_path / "output") == ["compare_result_TIME.xlsx"]
    assert "NPU_Stack_Info" not in titles_in(tmp_path / "output")
    assert main(["compare", "-i", "compare.json", "-c", "-o"]) == 0


def test_fuzzy_matching_and_colours(compare_json: Path, tmp_path: Path) -> None:
    words = ["-f", "pytorch", "compare", "-i", str(compare_json), "-o", str(tmp_path / "o")]
    assert main([*words, "-f", "-hl"]) == 0
    (file,) = (tmp_path / "o").glob("*.xlsx")
    rows = openpyxl.load_workbook(file)["inputs"].iter_rows(values_only=True)
    facts = {row[0]: row[1] for row in rows}
    assert facts["fuzzy"] is True and facts["highlight"] is True


def test_a_mapping_excludes_fuzzy_matching(
    compare_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(f"{LINEAR}.input.0: {LINEAR}.input.0\n")
    words = ["compare", "-i", str(compare_json), "-o", str(tmp_path / "o"), "-dm", str(mapping)]
    assert main(words) == 0
    assert main([*words, "-f"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_first_difference_takes_the_place_of_the_table(
    compare_json: Path, tmp_path: Path
) -> None:
    assert main(["compare", "-i", str(compare_json), "-o", str(tmp_path / "o"), "-da"]) == 0
    assert names_in(tmp_path / "o") == ["compare_result_rank_TIME.json", "diff_analyze_TIME.json"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-f", "mindspore", "compare", "-i", "x"], "mindspore dumps are not read here"),
        (["merge_result", "-i", "a", "-o", "b", "-config", "c"], "merge_result is not here; "),
        (["-f", "pytorch", "parse"], "`tensorprobe show DUMP` looks into a dump"),
        (["compare", "-i", "x", "--cell", "y"], "compare does not know --cell y"),
        (["compare", "-i", "nowhere.json"], "nowhere.json"),
        (["run_ut", "-api_info", "x", "-config", "no.json"], "no.json"),
    ],
)
def test_what_is_not_here_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


def test_run_ut_is_the_precheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dump = next((PEER / "mlp/L1_statistics/npu").rglob("dump.json"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "run_ut", "run_ut": {"white_list": ["relu"]}}))
    words = ["run_ut", "-api_info", str(dump), "-o", "results", "-config", "config.json"]
    assert main(["-f", "pytorch", *words, "-save_error_data", "-f"]) == 0
    (file,) = (tmp_path / "results").glob("accuracy_checking_result_*.csv")
    with file.open(newline="", encoding="utf-8-sig") as text:
        rows = list(csv.reader(text))[1:]
    assert [row[0] for row in rows] == ["Torch.relu.0"] or all("relu" in row[0] for row in rows)
    assert rows


def test_run_overflow_check_judges_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = next((PEER / "overflow/L1").rglob("dump.json"))
    assert main(["-f", "pytorch", "run_overflow_check", "-api_info", str(dump)]) in (0, 1)
    assert "normal overflow." in capsys.readouterr().out


@pytest.mark.parametrize("module", ["msprobe", "msprobe.msprobe"])
def test_it_runs_as_a_module_and_has_help(module: str) -> None:
    paths = [str(REPOSITORY / "compat/src"), *sys.path]
    answer = subprocess.run(
        [sys.executable, "-m", module, "-f", "pytorch", "compare", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert answer.returncode == 0 and "--data_mapping" in answer.stdout
    assert "examples:\n  msprobe -f pytorch compare -i ./compare.json" in answer.stdout


def test_both_distributions_have_one_version_and_the_command_is_installed() -> None:
    assert tensorprobe_compat.__version__ == tensorprobe.__version__
    project = (REPOSITORY / "compat/pyproject.toml").read_text()
    assert '[project.scripts]\nmsprobe = "msprobe.msprobe:main"\n' in project
