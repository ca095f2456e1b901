"""On an accelerator: the same run, no sound kernel accused, a wrong one found."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
from faults import WrongKernel

from tensorprobe import OnlineCheck
from tensorprobe.online import OnlineReport

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


def trained(
    name: str, dtype: torch.dtype, folder: Path | None, **options: object
) -> tuple[list[torch.Tensor], OnlineReport | None]:
    torch.manual_seed(3)
    case = models.CASES[name]
    model = case.build().train().cuda().to(dtype)
    batch = {
        key: value.cuda().to(dtype) if value.is_floating_point() else value.cuda()
        for key, value in case.batch(torch.Generator().manual_seed(4)).items()
    }
    torch.cuda.manual_seed_all(5)
    check = None if folder is None else OnlineCheck(path=folder, quiet=True, **options)
    if check is not None:
        check.__enter__()
    loss = case.loss(model, batch)
    loss.backward()
    if check is not None:
        check.__exit__(None, None, None)
    found = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [t.detach().cpu() for t in found], None if check is None else check.report


@pytest.mark.parametrize("jobs", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mlp", "cnn", "llama-like"])
def test_nothing_fails_and_nothing_changes(
    tmp_path: Path, name: str, dtype: torch.dtype, jobs: int
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        without, _ = trained(name, dtype, None)
        found, report = trained(name, dtype, tmp_path, jobs=jobs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert report is not None
    assert report.failures == ()
    assert report.checked > 20
    assert all(map(torch.equal, found, without))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_of_the_device_is_told_where_the_cpu_has_none(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    _, report = trained("gpt", dtype, tmp_path)
    assert report is not None
    assert report.failures == ()
    assert report.seen == report.checked + sum(report.skipped.values())


@pytest.mark.parametrize("operator", ["addmm", "native_layer_norm", "gelu_backward"])
def test_a_wrong_kernel_is_named(tmp_path: Path, operator: str) -> None:
    with WrongKernel(operator, 2):
        _, report = trained("gpt", torch.float32, tmp_path)
    assert report is not None
    assert [failure.name for failure in report.failures] == [f"{operator}_2"]
    assert {path.name for path in (report.folder / "npu").glob("*_output*.npy")}
