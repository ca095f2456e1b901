"""A wrong kernel is found at its operator and call, and nothing else is accused."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from faults import WrongKernel

from tensorprobe import OnlineCheck
from tensorprobe.online import OnlineReport

# Operator, call, precision; what they are called by is a training step of the model.
FAULTS = [
    ("gpt", "embedding", 1),
    ("gpt", "add", 3),
    ("gpt", "native_layer_norm", 2),
    ("gpt", "addmm", 4),
    ("gpt", "gelu", 2),
    ("gpt", "_log_softmax", 1),
    ("gpt", "nll_loss_forward", 1),
    ("gpt", "transpose", 3),
    ("gpt", "view", 2),
    ("gpt", "nll_loss_backward", 1),
    ("gpt", "_log_softmax_backward_data", 1),
    ("gpt", "mm", 5),
    ("gpt", "sum", 2),
    ("gpt", "gelu_backward", 1),
    ("gpt", "native_layer_norm_backward", 3),
    ("gpt", "embedding_dense_backward", 1),
    ("gpt", "div_", 2),
    ("cnn", "convolution", 2),
    ("cnn", "native_batch_norm", 2),
    ("cnn", "relu_", 1),
    ("cnn", "max_pool2d_with_indices", 1),
    ("cnn", "convolution_backward", 2),
    ("cnn", "threshold_backward", 1),
    ("llama-like", "bmm", 2),
    ("llama-like", "_softmax", 1),
    ("llama-like", "_softmax_backward_data", 1),
    ("llama-like", "silu_backward", 1),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def checked_step(
    folder: Path, model_name: str, precision: str, fault: WrongKernel, **options: object
) -> OnlineReport:
    torch.manual_seed(3)
    case = models.CASES[model_name]
    model = case.build().train()
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    batch = case.batch(torch.Generator().manual_seed(4))
    with fault, OnlineCheck(path=folder, quiet=True, **options) as check:
        loss = case.loss(model, batch)
        loss.backward()
    return check.report


@pytest.mark.parametrize(("model", "operator", "call"), FAULTS)
def test_a_wrong_kernel_is_named(tmp_path: Path, model: str, operator: str, call: int) -> None:
    fault = WrongKernel(operator, call)
    report = checked_step(tmp_path, model, "fp32", fault)
    assert fault.was_made
    assert [failure.name for failure in report.failures] == [f"{operator}_{call}"]
    direction = "backward" if "backward" in operator or operator in ("mm", "sum") else "forward"
    assert report.first_failure is not None
    assert report.first_failure.direction == direction
    # Of a backward operator, the line of the forward call that it belongs to.
    assert "models.py:" in report.first_failure.place or direction == "backward"


@pytest.mark.parametrize("operator", ["view", "transpose", "t", "split"])
def test_a_view_that_writes_into_its_base_is_named(tmp_path: Path, operator: str) -> None:
    fault = WrongKernel(operator, 2, in_place=True)
    report = checked_step(tmp_path, "gpt", "fp32", fault)
    assert fault.was_made
    assert [failure.name for failure in report.failures] == [f"{operator}_2"]


@pytest.mark.parametrize("operator", ["addmm", "native_layer_norm", "mm", "gelu_backward"])
def test_in_bfloat16(tmp_path: Path, operator: str) -> None:
    fault = WrongKernel(operator, 2)
    report = checked_step(tmp_path, "gpt", "bf16", fault)
    assert [failure.name for failure in report.failures] == [f"{operator}_2"]


def test_threads_in_the_background_find_the_same(tmp_path: Path) -> None:
    fault = WrongKernel("mm", 5)
    report = checked_step(tmp_path, "gpt", "fp32", fault, jobs=4)
    assert [failure.name for failure in report.failures] == ["mm_5"]
    with open(report.table, newline="") as file:
        order = [row["NPU Name"] for row in csv.DictReader(file)]
    mine = checked_step(tmp_path, "gpt", "fp32", WrongKernel("mm", 5))
    with open(mine.table, newline="") as file:
        assert order == [row["NPU Name"] for row in csv.DictReader(file)]


def test_the_files_of_a_miss_show_what_is_wrong(tmp_path: Path) -> None:
    report = checked_step(tmp_path, "gpt", "bf16", WrongKernel("addmm", 2))
    names = {path.relative_to(report.folder).as_posix() for path in report.folder.rglob("*.npy")}
    assert names == {
        "npu/addmm_2_input.0.npy",
        "npu/addmm_2_input.1.npy",
        "npu/addmm_2_input.2.npy",
        "npu/addmm_2_output.npy",
        "cpu/addmm_2_output.npy",
    }
    # bfloat16 is all there in float32, which numpy has.
    bias, left, right, ours = (
        np.load(report.folder / "npu" / f"addmm_2_{name}.npy")
        for name in ("input.0", "input.1", "input.2", "output")
    )
    theirs = np.load(report.folder / "cpu" / "addmm_2_output.npy")
    assert ours.dtype == np.float32
    np.testing.assert_allclose(theirs, bias + left @ right, rtol=1e-3, atol=1e-4)
    assert 1.02 < np.abs(ours).sum() / np.abs(theirs).sum() < 1.04


def test_the_table_has_the_columns_of_the_older_tool(tmp_path: Path) -> None:
    report = checked_step(tmp_path, "gpt", "fp32", WrongKernel("addmm", 2), statistics=True)
    assert report.table.parent == report.folder
    stamp = report.folder.name.removeprefix("msprobe_rank0_")
    assert len(stamp) == 14
    assert report.table.name == f"compare_result_rank0_{stamp}.csv"
    with open(report.table, newline="") as file:
        rows = {row["NPU Name"]: row for row in csv.DictReader(file)}
    wrong, right = rows["addmm_2_output"], rows["addmm_1_output"]
    assert (wrong["Within Rounding"], right["Within Rounding"]) == ("No", "Yes")
    assert right["Accuracy Reached or Not"] == "Yes"
    assert right["NPU Dtype"] == "torch.float32"
    assert right["Bench Dtype"] == "torch.float64"
    assert float(right["NPU max"]) == pytest.approx(float(right["Bench max"]), rel=1e-5)
    assert "models.py" in wrong["NPU_Stack_Info"]
    assert "native_layer_norm_1_output.2" in rows


def test_the_older_rule_is_a_column_of_its_own(tmp_path: Path) -> None:
    """A factor leaves the cosine at 1: that rule passes what rounding does not explain."""
    report = checked_step(tmp_path, "gpt", "fp32", WrongKernel("gelu", 1))
    with open(report.table, newline="") as file:
        rows = {row["NPU Name"]: row for row in csv.DictReader(file)}
    row = rows["gelu_1_output"]
    assert (row["Accuracy Reached or Not"], row["Within Rounding"]) == ("Yes", "No")


def test_what_rounding_explains_is_no_failure(tmp_path: Path) -> None:
    """What cancels may have any direction: the cosine misses the older rule."""
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        near = torch.full((64, 1000), 0.1) + torch.arange(1000) % 7 * 1e-9
        (near - near.flip(-1)).sum(-1)
        large = torch.full((40,), 511.0, dtype=torch.bfloat16)
        large * 1.017
    assert check.report.failed == 0
