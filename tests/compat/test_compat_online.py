"""The online comparison of msprobe: its parameters, folders, files and texts."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from faults import WrongKernel

from msprobe.pytorch.common import seed_all
from msprobe.pytorch.online_dispatch import PtdbgDispatch
from tensorprobe import TensorprobeError


def test_forward_and_backward_as_in_the_manual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed_all()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    inputs = torch.randn(3, 4)
    with WrongKernel("addmm", 2):
        with PtdbgDispatch(dump_mode="auto", dump_path=str(tmp_path)):
            output = model(inputs)
        with PtdbgDispatch(dump_mode="auto", dump_path=str(tmp_path)):
            output.sum().backward()
    forward, backward = sorted(tmp_path.iterdir())
    # A second one within a second gets the time of the next.
    for folder in (forward, backward):
        assert re.fullmatch(r"msprobe_rank0_[0-9]{14}", folder.name)
        stamp = folder.name[-14:]
        assert sorted(path.name for path in folder.iterdir()) == [
            f"compare_result_rank0_{stamp}.csv",
            "cpu",
            "npu",
        ]
    assert "Failed addmm_2" in capsys.readouterr().err
    kept = sorted(path.relative_to(forward).as_posix() for path in forward.rglob("*.npy"))
    assert kept == [
        "cpu/addmm_2_output.npy",
        "npu/addmm_2_input.0.npy",
        "npu/addmm_2_input.1.npy",
        "npu/addmm_2_input.2.npy",
        "npu/addmm_2_output.npy",
    ]
    assert np.load(forward / "npu" / "addmm_2_input.1.npy").shape == (3, 4)
    assert not list(backward.rglob("*.npy"))
    with open(next(forward.glob("*.csv")), newline="") as file:
        rows = {row["NPU Name"]: row for row in csv.DictReader(file)}
    assert rows["addmm_1_output"]["Accuracy Reached or Not"] == "Yes"
    assert float(rows["addmm_1_output"]["NPU max"]) > 0


@pytest.mark.parametrize(
    ("mode", "names", "kept"),
    [
        ("all", None, {"relu_1", "mul_1"}),
        ("list", ["mul"], {"mul_1"}),
        ("auto", None, set()),
        ("OFF", None, set()),
    ],
)
def test_whose_data_are_kept(
    tmp_path: Path, mode: str, names: list[str] | None, kept: set[str]
) -> None:
    with PtdbgDispatch(dump_mode=mode, api_list=names, dump_path=tmp_path, tag="first"):
        torch.ones(3).relu() * 2
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("msprobe_first_rank0_")
    found = {path.name.partition("_output")[0] for path in (folder / "cpu").iterdir()}
    assert found & {"relu_1", "mul_1"} == kept


def test_a_miss_by_the_older_rule_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Negated(WrongKernel):
        def _spoil(self, result: torch.Tensor) -> torch.Tensor:
            return -result

    with Negated("mul"), PtdbgDispatch("auto", dump_path=tmp_path) as check:
        torch.randn(50) * 2
    assert "Failed mul_1" in capsys.readouterr().err
    with open(check.report.table, newline="") as file:
        rows = {row["NPU Name"]: row for row in csv.DictReader(file)}
    assert rows["mul_1_output"]["Accuracy Reached or Not"] == "No"
    assert float(rows["mul_1_output"]["Cosine"]) == pytest.approx(-1)


def test_what_cannot_be_used_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TensorprobeError, match="path is None, wanted the name of a folder"):
        PtdbgDispatch(dump_mode="auto")
    with pytest.raises(TensorprobeError, match="mode is 'some', wanted one of all, list, auto"):
        PtdbgDispatch(dump_mode="some", dump_path=tmp_path)


def test_more_processes_than_a_quarter_of_the_cores_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with PtdbgDispatch("auto", dump_path=tmp_path, process_num=4096):
        torch.ones(3) + 1
    assert re.search(r"jobs is 4096; \d+ is a quarter of the cores", capsys.readouterr().err)


def test_a_list_without_its_mode_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with PtdbgDispatch(dump_mode="auto", dump_path=str(tmp_path), api_list=["mm"]):
        pass
    assert "api_list goes with dump_mode='list'; with 'auto' it has no effect" in (
        capsys.readouterr().err
    )
