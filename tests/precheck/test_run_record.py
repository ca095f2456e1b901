"""A run that is resumed is told the same as the one that was interrupted, or is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from precheck_models import Capture, capture_into, train_a_little

import tensorprobe
from tensorprobe.cli import main
from tensorprobe.errors import DumpError
from tensorprobe.precheck.run_record import RunRecord, Told

STAMP = "20260102030405"
TOLD = Told("/dumps/a", (("step0/rank0", "0000-1"),), "auto", 7)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


def interrupted(dump: Path, folder: Path) -> Path:
    """Check a dump and leave two rows of the results."""
    report = tensorprobe.precheck(dump, folder, devices=["cpu"], data="random", seed=7)
    (path,) = report.result_paths
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    return path


def test_another_seed_data_device_or_dump_is_one_line_that_says_which(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = capture(train_a_little).path.parents[2]
    # The same calls in the same order with other numbers in them.
    other = shutil.copytree(dump, tmp_path / "other")
    (calls,) = other.rglob("dump.json")
    text = calls.read_text()
    assert '"Max": ' in text
    calls.write_text(text.replace('"Max": ', '"Max": 1', 1))
    result = interrupted(dump, tmp_path / "out")
    before = result.read_bytes()
    options = ["--resume", str(result), "--device", "cpu", "--data", "random", "--seed", "7"]

    def refused(path: Path, *changed: str) -> str:
        assert main(["precheck", str(path), *options, *changed]) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1
        assert "start anew without --resume" in said.err
        assert result.read_bytes() == before
        return said.err

    assert "begun with --seed 7, and this run is with --seed 8" in refused(dump, "--seed", "8")
    assert "with --data random, and this run is with --data real" in refused(dump, "--data", "real")
    assert f"begun for another dump, that of {dump}" in refused(other)
    (record,) = result.parent.glob("accuracy_checking_run_*.json")
    told = json.loads(record.read_text())
    assert told["opened"] == {"cpu": "cpu"}
    record.write_text(json.dumps({**told, "opened": {"cpu": "cuda:0 NVIDIA H200"}}))
    assert "begun on cuda:0 NVIDIA H200, and this run is on cpu" in refused(dump)


def test_a_dump_that_was_moved_is_the_same_and_the_device_may_have_another_name(
    capture: Capture, tmp_path: Path
) -> None:
    dump = capture(train_a_little).path.parents[2]
    whole = tensorprobe.precheck(dump, tmp_path / "whole", devices=["cpu"], data="random", seed=7)
    result = interrupted(dump, tmp_path / "out")
    (record,) = result.parent.glob("accuracy_checking_run_*.json")
    before = record.read_bytes()
    moved = dump.rename(tmp_path / "moved")
    tensorprobe.precheck(moved, devices=["cpu:0"], data="random", seed=7, resume=result)
    assert result.read_bytes() == whole.result_paths[0].read_bytes()
    assert record.read_bytes() == before


def test_results_without_a_record_are_resumed(capture: Capture, tmp_path: Path) -> None:
    dump = capture(train_a_little).path
    result = interrupted(dump, tmp_path / "out")
    (record,) = result.parent.glob("accuracy_checking_run_*.json")
    record.unlink()
    report = tensorprobe.precheck(dump, devices=["cpu"], data="random", seed=9, resume=result)
    assert len(report.lines) > 2 and not record.exists()


def test_a_run_that_was_killed_before_its_device_was_known_takes_the_one_it_finds(
    tmp_path: Path,
) -> None:
    RunRecord(tmp_path, STAMP, TOLD, ["auto", "cuda:1"])
    result = tmp_path / f"accuracy_checking_result_{STAMP}.csv"
    resumed = RunRecord(tmp_path, STAMP, TOLD, ["auto"], result)
    resumed.meet_device("auto", "cuda:0 A")
    again = RunRecord(tmp_path, STAMP, TOLD, ["auto"], result)
    again.meet_device("auto", "cuda:0 A")
    again.meet_device("cuda:1", "cuda:1 A")
    with pytest.raises(DumpError, match="begun on cuda:0 A, cuda:1 A, and this run is on cpu"):
        again.meet_device("auto", "cpu")


def test_a_damaged_record_says_what_to_do(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, STAMP, TOLD, ["auto"])
    for text in ("{", "[]", '{"dump": 1}'):
        record.path.write_text(text)
        with pytest.raises(DumpError, match=f"accuracy_checking_run_{STAMP}.json"):
            RunRecord(tmp_path, STAMP, TOLD, ["auto"], tmp_path / "result.csv")


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunRecord(tmp_path, STAMP, TOLD, ["auto"]):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_need_not_be_told_the_compilers_switch_again(tmp_path: Path) -> None:
    RunRecord(tmp_path, STAMP, replace(TOLD, jit_compile=True), ["cpu"])
    result = tmp_path / f"accuracy_checking_result_{STAMP}.csv"
    assert RunRecord(tmp_path, STAMP, TOLD, ["cpu"], result).jit_compile is True
    with pytest.raises(DumpError, match=r"begun with --jit-compile, and .* with --no-jit-compile;"):
        RunRecord(tmp_path, STAMP, replace(TOLD, jit_compile=False), ["cpu"], result)


def test_a_switch_that_was_left_alone_is_told_from_one_that_is_off(tmp_path: Path) -> None:
    RunRecord(tmp_path, STAMP, TOLD, ["cpu"])
    result = tmp_path / f"accuracy_checking_result_{STAMP}.csv"
    left = "begun without --jit-compile and --no-jit-compile, and this run is with --jit-compile"
    with pytest.raises(DumpError, match=left):
        RunRecord(tmp_path, STAMP, replace(TOLD, jit_compile=True), ["cpu"], result)
