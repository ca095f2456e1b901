"""`tensorprobe run --online` checks a script that is not edited."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

TRAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
# Two processes of gloo, which count how often a collective is made by its result.
REDUCE = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.full((3,), float(dist.get_rank() + 1))
for _ in range(4):
    dist.all_reduce(x)
parts = [torch.empty(3) for _ in range(2)]
dist.all_gather(parts, x)
work = dist.all_reduce(x, async_op=True)
work.wait()
# One write, so that the lines of two processes stay apart.
os.write(1, f"sum {x.tolist()} {[part.tolist() for part in parts]}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def rows_of(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.rglob("compare_result_rank*.csv")
    with open(table, newline="") as file:
        return list(csv.DictReader(file))


def test_the_script_runs_as_it_would_and_every_step_is_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    bare = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ended = run(tmp_path, "run", "--online", "-o", "results", "train.py", "3")
    assert (ended.returncode, ended.stdout) == (3, bare.stdout)
    assert "operators seen" in ended.stderr and ", 0 failed" in ended.stderr
    rows = rows_of(tmp_path / "results")
    assert {row["Step"] for row in rows} == {"0", "1", "2"}
    assert any(row["Direction"] == "backward" for row in rows)
    assert all("train.py:" in row["Place"] for row in rows if row["Place"])


def test_steps_and_operators_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    options = ("--step", "1", "--include", "mm", "--mode", "list", "--ops", "addmm")
    ended = run(tmp_path, "run", "--online", *options, "-o", "results", "train.py")
    assert ended.returncode == 0, ended
    rows = rows_of(tmp_path / "results")
    assert {row["Step"] for row in rows} == {"1"}
    assert {row["Operator"] for row in rows} == {"aten.addmm.default", "aten.mm.default"}
    kept = {path.name.partition("_")[0] for path in (tmp_path / "results").rglob("*.npy")}
    assert kept == {"addmm"}


def test_collectives_are_never_made_twice(tmp_path: Path) -> None:
    (tmp_path / "reduce.py").write_text(REDUCE)
    launcher = ("torchrun", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    ended = run(tmp_path, "run", "--online", "-o", "results", *launcher, "reduce.py")
    assert ended.returncode == 0, ended
    # Each sum doubles what both have: 3, 6, 12, 24, and 48.
    assert (
        ended.stdout.count("sum [48.0, 48.0, 48.0] [[24.0, 24.0, 24.0], [24.0, 24.0, 24.0]]") == 2
    )
    assert "a collective, which is never made twice" in ended.stderr
    folders = sorted(path.name[:13] for path in (tmp_path / "results").iterdir())
    assert folders == ["msprobe_rank0", "msprobe_rank1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--online", "--level", "L1"), "--level goes with capturing, not with --online"),
        (("--every", "2"), "--every goes with --online"),
        (("--online", "--mode", "some"), "mode is 'some', wanted one of all, list, auto, off"),
        (("--online", "--disk-limit", "-1"), "--disk-limit is '-1', wanted bytes, such as"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ended = run(tmp_path, "run", *options, "train.py")
    assert ended.returncode == 2
    assert message in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "taken").write_text("")
    ended = run(tmp_path, "run", "--online", "-o", "taken", "train.py")
    assert ended.returncode == 2, ended
    (line,) = ended.stderr.splitlines()
    assert "taken" in line
