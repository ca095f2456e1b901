"""The two files are written row by row and go on where they stopped."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.precheck.outcome import CallResult, OutputRow
from tensorprobe.precheck.results import ResultFiles, stamp_of
from tensorprobe.report.accuracy_titles import DETAIL_TITLES, RESULT_TITLES

STAMP = "20260102030405"


def result(number: int, message: str = "") -> CallResult:
    name = f"Torch.add.{number}"
    cells = tuple(str(place) for place in range(20))
    rows = tuple(
        OutputRow(f"{name}.forward.output.{i}", "torch.float64", "torch.float32", "(2, 3)", cells,
                  "pass", message)
        for i in range(2)
    )  # fmt: skip
    return CallResult(f"{name}.forward", "pass", "", message, rows)


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def write(folder: Path, numbers: range) -> ResultFiles:
    with ResultFiles(folder, STAMP) as files:
        for number in numbers:
            files.write(f"Torch.add.{number}", result(number))
    return files


def test_titles_and_rows(tmp_path: Path) -> None:
    files = write(tmp_path, range(2))
    rows, details = read(files.result_path), read(files.details_path)
    assert files.result_path.name == f"accuracy_checking_result_{STAMP}.csv"
    assert tuple(rows[0]) == RESULT_TITLES and tuple(details[0]) == DETAIL_TITLES
    assert rows[1] == ["Torch.add.0", "pass", " ", "", "", ""]
    assert [row[0] for row in details[1:3]] == [
        "Torch.add.0.forward.output.0",
        "Torch.add.0.forward.output.1",
    ]
    assert details[1][DETAIL_TITLES.index("Status")] == "pass"
    assert details[1][DETAIL_TITLES.index("ULP误差大于阈值占比")] == "16"
    assert details[1][-3:] == ["17", "18", "19"]


@pytest.mark.parametrize("cut_result", [0, 1, 20, 60, 90, 150])
@pytest.mark.parametrize("cut_details", [0, 1, 40, 200, 300])
def test_a_run_that_is_cut_anywhere_ends_as_one_that_was_not(
    tmp_path: Path, cut_result: int, cut_details: int
) -> None:
    whole = write(tmp_path / "whole", range(5))
    broken = write(tmp_path / "broken", range(3))
    result_bytes = broken.result_path.read_bytes()
    details_bytes = broken.details_path.read_bytes()
    broken.result_path.write_bytes(result_bytes[: len(result_bytes) - cut_result])
    if cut_result >= cut_details // 10:
        # A verdict never stands without its details.
        broken.details_path.write_bytes(details_bytes[: len(details_bytes) - min(cut_details, 1)])
        cut = 1 if cut_details else 0
        if cut and cut_result == 0:
            return
    with ResultFiles(tmp_path / "broken", STAMP) as files:
        done = [row[0] for row in files.done]
        for number in range(len(done), 5):
            files.write(f"Torch.add.{number}", result(number))
    assert files.result_path.read_bytes() == whole.result_path.read_bytes()
    assert files.details_path.read_bytes() == whole.details_path.read_bytes()


def test_messages_are_one_line_and_never_a_formula(tmp_path: Path) -> None:
    with ResultFiles(tmp_path, STAMP) as files:
        files.write("Torch.add.0", result(0, "=1+1\nnext"))
    assert read(files.result_path)[1][3] == "'=1+1 next"


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"accuracy_checking_result_{STAMP}.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DumpError, match="its titles are others"):
        ResultFiles(tmp_path, STAMP)
    with pytest.raises(DumpError, match="no result of a pre-check"):
        stamp_of(Path("results.csv"))
    assert stamp_of(Path("accuracy_checking_result_step0_rank1_20260102030405.csv")) == STAMP


@pytest.mark.parametrize("length", [None, 0, 1, 400, 700, 900, 1200])
def test_calls_whose_details_were_lost_are_done_again(tmp_path: Path, length: int | None) -> None:
    whole = write(tmp_path / "whole", range(5))
    broken = write(tmp_path / "broken", range(4))
    if length is None:
        broken.details_path.unlink()
    else:
        broken.details_path.write_bytes(broken.details_path.read_bytes()[:length])
    with ResultFiles(tmp_path / "broken", STAMP) as files:
        assert len(files.done) < 4
        for number in range(len(files.done), 5):
            files.write(f"Torch.add.{number}", result(number))
    assert files.result_path.read_bytes() == whole.result_path.read_bytes()
    assert files.details_path.read_bytes() == whole.details_path.read_bytes()


def test_a_call_without_results_has_a_line_in_the_details(tmp_path: Path) -> None:
    with ResultFiles(tmp_path, STAMP) as files:
        files.write("Torch.add.0", CallResult("Torch.add.0.forward", "SKIP", "", "no such call"))
    (row,) = read(files.details_path)[1:]
    assert row[0] == "Torch.add.0.forward" and len(row) == len(DETAIL_TITLES)
    assert row[DETAIL_TITLES.index("Status")] == "SKIP" and "no such call" in row
    with ResultFiles(tmp_path, STAMP) as files:
        assert len(files.done) == 1
