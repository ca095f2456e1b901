"""Calls with complex results: judged by their distances, or by whether they are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorprobe.blame import Conclusion, blame
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import CallRecord, DumpInfo, TensorValue
from tensorprobe.store import DumpWriter
from tensorprobe.summary.host import to_host


def write(folder: Path, name: str, given: torch.Tensor, made: torch.Tensor) -> Path:
    with DumpWriter(folder, DumpInfo(task="tensor", level="L1")) as writer:
        values = []
        for place, tensor in (("input.0", given), ("output.0", made)):
            size = tensor.abs().double()
            values.append(
                TensorValue(
                    str(tensor.dtype),
                    tuple(tensor.shape),
                    float(size.max()),
                    float(size.min()),
                    float(size.mean()),
                    float(size.norm()),
                    False,
                    data_name=writer.save_tensor(f"{name}.{place}", to_host(tensor)),
                )
            )
        assert values[0].dtype in DTYPES
        writer.write(CallRecord(name, inputs=(values[0],), kwargs={}, outputs=(values[1],)))
    return folder


def judged(tmp_path: Path, name: str, made: torch.Tensor, wrong: torch.Tensor) -> Conclusion:
    given = made.conj_physical()
    candidate = write(tmp_path / "candidate", name, given, wrong)
    return blame(candidate, write(tmp_path / "reference", name, given, made))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["Torch.square.0.forward", "Torch.conj_physical.0.forward"])
def test_a_wrong_complex_result_is_named(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    torch.manual_seed(0)
    made = torch.complex(*torch.randn(2, 8, 8)).to(dtype)
    wrong = made.clone()
    wrong[0, 0] *= 1.5
    assert judged(tmp_path, name, made, wrong).culprit == name


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_rounding_of_a_complex_result_is_no_fault(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    made = torch.complex(*torch.randn(2, 8, 8)).to(dtype)
    other = made * (1 + torch.finfo(dtype).eps / 2 * torch.randn(8, 8).sign())
    answer = judged(tmp_path, "Torch.matmul.0.forward", made, other.to(dtype))
    assert answer.culprit is None
