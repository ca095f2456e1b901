"""Budgets of memory and disk, folders that cannot be written, and interrupts."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from faults import WrongKernel

from conftest import REPOSITORY
from tensorprobe import OnlineCheck
from tensorprobe.errors import ConfigError, ReportError

_PATH = os.pathsep.join((str(REPOSITORY / "src"), str(Path(__file__).parent)))


def test_data_beyond_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    with OnlineCheck("all", tmp_path, quiet=True, disk_limit=10_000) as check:
        x = torch.ones(1000)
        for _ in range(5):
            x.relu()
    report = check.report
    # The first is a result of 4,000 bytes on both sides, which leaves room for none of the others.
    assert {path.name for path in report.folder.rglob("*.npy")} == {
        "ones_1_input.0.0.npy",
        "ones_1_output.npy",
        "ones_1_input_pin_memory.npy",
    }
    assert report.kept_bytes <= 10_000
    assert "the data of 5 calls were not kept: disk_limit is reached" in report.notes
    assert report.checked == 6


def test_a_small_budget_of_memory_changes_nothing_but_the_time(tmp_path: Path) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True, jobs=1, memory_limit=0)
    with WrongKernel("relu", 4), check:
        x = torch.randn(1000)
        for _ in range(9):
            x.relu()
    assert [failure.name for failure in check.report.failures] == ["relu_4"]
    assert check.report.checked == check.report.seen - 1


def test_the_run_overtakes_its_check_up_to_the_budget_of_memory(tmp_path: Path) -> None:
    waiting = {}
    for limit in (0, 1 << 30):
        x = torch.randn(1500, 1500)
        with OnlineCheck(path=tmp_path, quiet=True, jobs=1, memory_limit=limit) as check:
            x @ x
            x @ x
            waiting[limit] = check._session._waiting_bytes
            names = {thread.name for thread in threading.enumerate()}
        assert any("tensorprobe online" in name for name in names)
        assert check.report.checked == 2
    assert waiting[0] == 0
    # Of the two, each with three tensors, one at least is not checked yet.
    assert waiting[1 << 30] >= 3 * x.nbytes


def test_a_file_where_the_folder_should_be_is_told_before_the_block(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ReportError, match="file"),
        OnlineCheck(path=tmp_path / "file", quiet=True),
    ):
        raise AssertionError("the block is not entered")
    with pytest.raises(ConfigError, match="path is ''"):
        OnlineCheck(path="")
    with OnlineCheck(path=tmp_path / "other", quiet=True) as check:
        torch.ones(2)
    assert check.report.checked == 1


def test_a_table_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the data is gone: the run goes on, and what is lost is told once."""
    with WrongKernel("mul"), OnlineCheck("all", tmp_path, quiet=True) as check:
        x = torch.ones(3)
        (folder,) = tmp_path.iterdir()
        for side in ("cpu", "npu"):
            for file in (folder / side).iterdir():
                file.unlink()
            (folder / side).rmdir()
        y = x * 2
        for _ in range(3):
            y = y + 1
    assert torch.allclose(y, torch.full((3,), 5.06))
    assert [failure.name for failure in check.report.failures] == ["mul_1"]
    note, count = check.report.notes
    assert note.startswith("not everything could be written") and "npu" in note
    assert count == "4 writes have failed"
    assert capsys.readouterr().err.count("could be written") == 1
    with open(check.report.table, newline="") as file:
        assert len(list(csv.reader(file))) == 6


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_a_full_disk_leaves_whole_rows_and_failures_are_told(tmp_path: Path, jobs: str) -> None:
    """As far as the system lets a file of this process grow."""
    ended = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path), jobs],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": _PATH},
        check=False,
    )
    assert ended.returncode == 0, ended
    assert ended.stdout == "went on, failed 1\n"
    assert "Failed sin_1" in ended.stderr
    assert "not everything could be written" in ended.stderr
    (lost,) = re.findall(r"the table lacks (\d+) rows", ended.stderr)
    (table,) = tmp_path.rglob("*.csv")
    with open(table, newline="") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) + int(lost) == 1 + 2003


_FULL = """
import resource, signal, sys, time, torch
from faults import WrongKernel
from tensorprobe import OnlineCheck

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with WrongKernel("sin"), OnlineCheck("off", sys.argv[1], jobs=int(sys.argv[2])) as check:
    x = torch.ones(3)
    x + 1
    time.sleep(0.6)
    for n in range(1000):
        if n == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        x + 1
        x * 2
        if n % 100 == 3:
            time.sleep(0.3)
    x.sin()
print("went on, failed", check.report.failed)
"""

_ENDLESS = """
import sys, torch
from tensorprobe import OnlineCheck
with OnlineCheck(path=sys.argv[1], jobs=1):
    x = torch.randn(64, 64)
    for n in range(10**9):
        x = (x @ x).tanh()
        if n == 20:
            print("going", flush=True)
"""


def test_ctrl_c_leaves_a_whole_table(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in err
    (table,) = tmp_path.rglob("*.csv")
    with open(table, newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 40
    assert {len(row) for row in rows} == {len(rows[0])}
    assert "operators seen" in err
