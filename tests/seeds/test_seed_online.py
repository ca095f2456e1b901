"""What seed 003 shows of the online comparison works as it is written."""

from __future__ import annotations

import csv
import re
import textwrap
from pathlib import Path

import numpy
import pytest
from script_runs import Ended, run_script
from seed_table import block

MODEL = """
import torch

torch.manual_seed(0)
model_cpu = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
inputs = torch.randn(6, 8)
loss = model_cpu(inputs).sum()
"""

# A wrong kernel: each float32 result of tanh is another one than it should be.
FAULT = """
import torch
from msprobe.pytorch.online_dispatch import PtdbgDispatch

def tanh(x):
    right = x.sinh() / x.cosh()
    return change(right) if x.dtype is torch.float32 else right

kernels = torch.library.Library("aten", "IMPL")
kernels.impl("tanh", tanh, "CPU")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def rows_of(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("compare_result_rank*.csv")
    with file.open(encoding="utf-8-sig", newline="") as text:
        return list(csv.DictReader(text))


def run_faulty(
    folder: Path, change: str, options: str = 'dump_mode="auto"', size: float = 1.0
) -> tuple[Ended, Path]:
    script = f"change = lambda x: {change}\n{FAULT}given = torch.ones(100) * {size}\n"
    script += f"with PtdbgDispatch(dump_path='./dump', {options}):\n"
    script += "    torch.tanh(given) + 1\n    torch.relu(given)\n"
    ended = run_script(script, folder)
    assert ended.code == 0, ended
    (found,) = (folder / "dump").iterdir()
    return ended, found


def test_the_script_checks_the_forward_and_the_backward(folder: Path) -> None:
    ended = run_script(f"{block('003-1').code}\nmain()\n", folder, name="train.py")
    assert ended.code == 0, ended
    assert "Failed" not in ended.out
    found = sorted(one for one in (folder / "dump").iterdir() if one.is_dir())
    assert len(found) == 2
    for one in found:
        verdicts = [row["Accuracy Reached or Not"] for row in rows_of(one)]
        assert "Yes" in verdicts and "No" not in verdicts
    seen = [{row["NPU Name"] for row in rows_of(one)} for one in found]
    assert any("addmm" in name for name in seen[0])
    assert any("backward" in name for name in seen[1])


def test_the_files_are_those_of_the_tree(folder: Path) -> None:
    """A folder, a table of the same rank and time, results of the CPU, both of the device."""
    script = f"{MODEL}\nfrom msprobe.pytorch.online_dispatch import PtdbgDispatch\n"
    script += "with PtdbgDispatch(dump_mode='all', dump_path='./dump'):\n    loss.backward()\n"
    ended = run_script(script, folder)
    assert ended.code == 0, ended
    (found,) = (folder / "dump").iterdir()
    shown = re.findall(r"[\w.]+", block("003-2").code.replace("............", ""))

    def form(name: str) -> str:
        name = re.sub(r"rank\d+", "rankN", re.sub(r"\d{14}", "TIME", name))
        return re.sub(r"(?<=backward_)\d+(?=_)", "N", name)

    ours = {form(found.name)} | {form(one.name) for one in found.rglob("*")}
    assert {form(name) for name in shown} <= ours
    stamp = re.search(r"\d{14}", found.name)
    assert stamp is not None and list(found.glob(f"compare_result_rank*_{stamp[0]}.csv"))
    assert all("_output" in one.name for one in (found / "cpu").iterdir())
    results = {one.name for one in (found / "npu").iterdir() if "_output" in one.name}
    assert results == {one.name for one in (found / "cpu").iterdir()}
    assert all(numpy.load(one) is not None for one in found.rglob("*.npy"))


@pytest.mark.parametrize(
    ("change", "size", "misses"),
    [
        # A cosine of 0.976 and errors of 0.4.
        ("torch.where(torch.arange(100) % 5 == 0, x * 0.5, x)", 1.0, True),
        # A cosine of 0.707 and errors of 0.0005.
        ("torch.where(torch.arange(100) % 2 == 0, x * 0.0, x)", 0.0005, True),
        # A cosine of 1 and errors of 1.5.
        ("x * 3", 1.0, True),
        ("x", 1.0, False),
    ],
)
def test_each_of_the_three_rules_decides(
    change: str, size: float, misses: bool, folder: Path
) -> None:
    ended, found = run_faulty(folder, change, size=size)
    reached = {row["NPU Name"]: row["Accuracy Reached or Not"] for row in rows_of(found)}
    missed = [name for name, verdict in reached.items() if verdict == "No"]
    assert ["tanh" in name for name in missed] == [True] * misses
    assert ("Failed" in ended.out + ended.err) is misses
    kept = {one.name.split("_")[0] for one in found.rglob("*.npy")}
    assert kept == ({"tanh"} if misses else set())


def test_what_rounding_explains_is_failed_with_a_remark(folder: Path) -> None:
    """A sum of what cancels has any direction, and errors as large as its numbers allow."""
    script = textwrap.dedent(
        """
        import torch
        from msprobe.pytorch.online_dispatch import PtdbgDispatch

        torch.manual_seed(0)
        half = torch.randn(8, 512) * 1e6
        given = torch.cat([half, -half], 1)[:, torch.randperm(1024)]
        with PtdbgDispatch(dump_mode="auto", dump_path="./dump"):
            given.sum(1)
        """
    )
    ended = run_script(script, folder)
    assert ended.code == 0, ended
    (told,) = (line for line in ended.err.splitlines() if "Failed" in line)
    assert "Failed sum_1" in told and "by the older rule alone" in told
    assert "0 failed" in ended.err
    (found,) = (folder / "dump").iterdir()
    assert [row["Accuracy Reached or Not"] for row in rows_of(found)] == ["No"]
    assert {one.name.split("_")[0] for one in found.rglob("*.npy")} == {"sum"}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ('dump_mode="list", api_list=["relu"]', {"relu"}),
        ('dump_mode="OFF"', set()),
        ("", set()),
    ],
)
def test_the_modes_decide_what_is_kept(options: str, kept: set[str], folder: Path) -> None:
    _, found = run_faulty(folder, "x * 3", options)
    assert {one.name.split("_")[0] for one in found.rglob("*.npy")} == kept


def test_a_tag_is_part_of_the_folders_name_and_workers_find_the_same(folder: Path) -> None:
    options = 'dump_mode="auto", tag="mine", process_num=1, debug=True'
    ended, found = run_faulty(folder, "x * 3", options)
    assert re.fullmatch(r"msprobe_mine_rank\d+_\d{14}", found.name)
    assert "Failed" in ended.out + ended.err
    assert [row["Accuracy Reached or Not"] for row in rows_of(found)].count("No") == 1


def test_one_block_may_hold_a_forward_and_a_backward_of_several_steps(folder: Path) -> None:
    script = f"{MODEL}\nfrom msprobe.pytorch.online_dispatch import PtdbgDispatch\n"
    script += textwrap.dedent(
        """
        with PtdbgDispatch(dump_mode="auto", dump_path="./dump"):
            for step in range(2):
                model_cpu(inputs).sum().backward()
        """
    )
    ended = run_script(script, folder)
    assert ended.code == 0 and "Failed" not in ended.out, ended
    (found,) = (folder / "dump").iterdir()
    names = [row["NPU Name"] for row in rows_of(found)]
    assert sum("addmm" in name for name in names) >= 2
    assert any("backward" in name for name in names)
