"""Statistics and real data are judged by the manual's rules, whatever the numbers are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_dumps import call, compared, tensor, write_data, write_dump

from tensorprobe.compare import compare
from tensorprobe.compare.cells import checksum_cell
from tensorprobe.compare.judge import difference_of, judge_accuracy
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import ScalarValue
from tensorprobe.store import Leaf, TensorData

CALL = "Torch.relu.0.forward"


def leaf(*numbers: Any, kind: str = "tensor") -> Leaf:
    numbers = (*numbers, *[numbers[-1]] * 3)[:4]
    return Leaf("input.0", kind, "torch.float32", (2,), *numbers, None, None, None)


def test_what_is_no_number_does_not_pass_if_it_is_another(tmp_path: Path) -> None:
    assert difference_of(leaf(True), leaf(False))[2:] == (True, True)
    assert difference_of(leaf("mean"), leaf("sum"))[2:] == (False, True)
    assert difference_of(leaf("mean"), leaf("mean"))[2:] == (False, False)
    assert difference_of(leaf(None), leaf(1.0))[2:] == (False, False)
    values = [(True, False), ("mean", "sum"), ("mean", "mean"), (False, False)]
    for side in (0, 1):
        arguments = [ScalarValue(type(pair[side]).__name__, pair[side]) for pair in values]
        write_dump(tmp_path / "ab"[side], [call(CALL, arguments)])
    tally = compare(tmp_path / "a", tmp_path / "b", tmp_path / "o").parts[0].tally
    assert (tally.failed, tally.open, tally.passed) == (1, 1, 2)
    assert tally.first_failure is not None and tally.first_failure.name == f"{CALL}.input.0"


def test_a_loss_that_is_nan_on_one_side_alone_fails(tmp_path: Path) -> None:
    for side, number in (("a", math.nan), ("b", 0.5)):
        write_data(tmp_path / side, {CALL: {"output": [np.float32(number), np.float32(0.5)]}})
    result = compare(tmp_path / "a", tmp_path / "b", tmp_path / "o", formats=["csv"])
    tally = result.parts[0].tally
    assert (tally.failed, tally.open) == (1, 1)


def test_differences_and_relative_errors() -> None:
    cells, is_far, *_ = difference_of(leaf(3.0, -1.0, 0.0, 2.0), leaf(2.0, -1.0, 0.0, 4.0))
    assert cells == [1.0, 0.0, 0.0, -2.0, "50.0%", "0.0%", "N/A", "50.0%"]
    assert not is_far  # exactly half is not more than half


@pytest.mark.parametrize(
    ("ours", "theirs", "difference", "relative", "is_far"),
    [
        (1.0, 0.0, 1.0, "N/A", True),
        (math.nan, 1.0, "Nan", "Nan", False),
        (math.inf, math.inf, "Nan", "Nan", False),
        (math.inf, 1.0, math.inf, "inf%", True),
        (1.0, -math.inf, math.inf, "Nan", False),
        (True, True, "N/A", "N/A", False),
        ("text", "text", "N/A", "N/A", False),
        (None, 1.0, "N/A", "N/A", False),
        (3, 2, 1, "50.0%", False),
        (10**400, 1, "Nan", "Nan", True),
        (10**400, 10**400, 0, "0.0%", False),
        (1e308, -1e308, math.inf, "inf%", True),
        (5e-324, 1e-323, -5e-324, "50.0%", False),
    ],
)
def test_every_kind_of_number(
    ours: Any, theirs: Any, difference: Any, relative: str, is_far: bool
) -> None:
    ones = (1.0, 1.0, 1.0)
    cells, was_far, *_ = difference_of(leaf(ours, *ones), leaf(theirs, *ones))
    assert (cells[0], cells[4], was_far) == (difference, relative, is_far)


@pytest.mark.parametrize(
    ("cosine", "error", "verdict"),
    [
        (0.98, 0.0011, "failed"),
        (0.98, 0.001, "passed"),
        (0.89, 0.0, "failed"),
        (0.9, 0.0, "passed"),
        (1.0, 1.0, "passed"),
        (1.0, 1.1, "failed"),
        (math.nan, 0.5, "passed"),
        (math.nan, 2.0, "failed"),
        (None, 0.0, "open"),
    ],
)
def test_accuracy_reached_or_not(cosine: float | None, error: float, verdict: str) -> None:
    assert judge_accuracy(cosine, error) == verdict


def test_other_values_are_compared_by_the_checksum_of_their_text() -> None:
    assert checksum_cell(leaf(*[1] * 4, kind="int")) == "83dcefb7"
    assert checksum_cell(leaf(*[False] * 4, kind="bool")) == "ea0c4734"
    assert checksum_cell(leaf(*[None] * 4, kind="torch.memory_format")) == "00000000"
    assert checksum_cell(leaf(*[None] * 4, kind="none")) == "N/A"


def measured(folder: Path, ours: Any, theirs: Any) -> dict[str, Any]:
    (row,) = compared(
        write_data(folder / "a", {CALL: {"input": [ours]}}),
        write_data(folder / "b", {CALL: {"input": [theirs]}}),
        folder,
    )
    return row


ZERO_D = "This is type of 0-d tensor, can not calculate 'Cosine', 'EucDist', "
F32 = np.float32


@pytest.mark.parametrize(
    ("ours", "theirs", "metrics", "accuracy", "message"),
    [
        ([1, 2], [1, 2], [1, 0, 0, 0, 1, 1], "Yes", ""),
        ([0, 0], [0, 0], [1, 0, 0, 0, 1, 1], "Yes", ""),
        ([np.nan, 2], [np.nan, 2], [1, 0, 0, 0, 1, 1], "Yes", ""),
        ([np.inf, 2], [np.inf, 2], [1, 0, 0, 0, 1, 1], "Yes", ""),
        ([np.inf, 2], [-np.inf, 2], ["N/A"] * 6, "No", "The Position of inf or nan in NPU"),
        ([np.nan, 2], [2, np.nan], ["N/A"] * 6, "No", "The Position of inf or nan in NPU"),
        ([np.nan, 2], [1, 2], ["N/A"] * 6, "No", "The Position of inf or nan in NPU"),
        ([3], [3], ["unsupported", 0, 0, 0, 1, 1], "None", "This is a 1-d tensor of length 1."),
        (
            [0, 0],
            [1, 0],
            ["Nan", 1, 1, 1, 0.5, 0.5],
            "Yes",
            "Cannot compare by Cosine Similarity, All the data is Zero in npu dump data.",
        ),
        (
            [5, 0],
            [0, 0],
            ["Nan", 5, 5, 5 * 2.0**52, 0.5, 0.5],
            "No",
            "Cannot compare by Cosine Similarity, All the data is Zero in Bench dump data.",
        ),
        ([], [], ["unsupported"] * 6, "None", "This is empty data, can not compare."),
    ],
)
def test_metrics_and_texts_of_special_data(
    tmp_path: Path, ours: Any, theirs: Any, metrics: list[Any], accuracy: str, message: str
) -> None:
    row = measured(tmp_path, np.array(ours, F32), np.array(theirs, F32))
    assert list(row.values())[8:14] == metrics
    assert row["Accuracy Reached or Not"] == accuracy
    assert row["Err_message"].startswith(message) and bool(message) == bool(row["Err_message"])


def test_tensors_without_dimensions(tmp_path: Path) -> None:
    row = measured(tmp_path / "0", np.array(3.0, F32), np.array(2.0, F32))
    cells = list(row.values())[8:14]
    assert cells == ["unsupported", "unsupported", 1.0, 0.5, "unsupported", "unsupported"]
    assert row["Err_message"].startswith(ZERO_D) and row["Err_message"].count(ZERO_D) == 1
    row = measured(tmp_path / "1", np.array(np.inf, F32), np.array(np.inf, F32))
    assert (row["MaxAbsErr"], row["MaxRelativeErr"]) == ("Nan", "Nan")
    assert "Cannot compare by MaxAbsError, the data contains nan" in row["Err_message"]


def test_other_dtypes_are_measured_and_said(tmp_path: Path) -> None:
    ours = TensorData(DTYPES["torch.bfloat16"], np.array([0x3F80, 0xC000], np.uint16))
    row = measured(tmp_path, ours, np.array([1.0, -2.0], F32))
    assert row["Cosine"] == pytest.approx(1.0) and row["MaxAbsErr"] == 0.0
    assert row["Err_message"] == "Dtype of NPU and bench Tensor do not match."


def test_a_data_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    ours = write_data(tmp_path / "a", {CALL: {"input": [np.ones(4, F32)]}})
    theirs = write_data(tmp_path / "b", {CALL: {"input": [np.ones(4, F32)]}})
    file = next(theirs.rglob("*.pt"))
    file.write_bytes(file.read_bytes()[:100])
    (row,) = compared(ours, theirs, tmp_path)
    assert row["Err_message"] == f"Dump file: {file.name} not found or read failed."
    assert (row["Cosine"], row["Accuracy Reached or Not"]) == ("unsupported", "None")
    file.unlink()
    (row,) = compared(ours, theirs, tmp_path / "again")
    assert row["Err_message"] == f"Dump file: {file.name} not found or read failed."


def test_requires_grad_that_differs_is_said(tmp_path: Path) -> None:
    from dataclasses import replace

    ours = write_dump(tmp_path / "a", [call(CALL, [tensor(1.0)])])
    other = replace(tensor(1.0), requires_grad=False)
    theirs = write_dump(tmp_path / "b", [call(CALL, [other])])
    (row,) = compared(ours, theirs, tmp_path)
    assert row["Requires_grad Consistent"] is False
    assert row["Err_message"] == "Requires_grad inconsistent. "


@pytest.mark.parametrize(
    ("ours", "theirs", "is_unlike"),
    [
        (math.nan, 0.5, True),
        (0.5, math.nan, True),
        (math.nan, math.nan, False),
        (math.inf, math.inf, False),
        (math.inf, -math.inf, True),
        (1.0, 2.0, False),
        (10**400, 1, False),
    ],
)
def test_a_number_that_is_finite_on_one_side_alone_does_not_pass(
    ours: Any, theirs: Any, is_unlike: bool
) -> None:
    assert (
        difference_of(leaf(ours, 1.0, 1.0, 1.0), leaf(theirs, 1.0, 1.0, 1.0)).is_unlike is is_unlike
    )
