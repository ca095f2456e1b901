"""On an accelerator: the same run, no sound kernel accused, a wrong one found."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
import torch.nn.functional as functional
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


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def recur(x: torch.Tensor) -> torch.Tensor:
    lstm = torch.nn.LSTM(32, 16, 2, batch_first=True).to(x)
    return lstm(x)[0]


SOUND = {
    "sorts": lambda x: (x.sort(), x.topk(5), x.argsort(), (x * 4).round().argmax(-1), x.max(1)),
    "ties": lambda x: ((x * 2).round().topk(9, sorted=False)[1], (x * 2).round().sort()[1]),
    "norms": lambda x: (
        functional.layer_norm(x, (32,)),
        functional.group_norm(x, 4),
        functional.batch_norm(x, None, None, training=True),
        functional.rms_norm(x, (32,)),
    ),
    "attention": lambda x: attend(*x.reshape(3, 2, 8, 48, 32).unbind()),
    "conv": lambda x: functional.conv2d(
        x.reshape(6, 4, 24, 128),
        torch.ones_like(x[:2, :4, :9]).reshape(8, 1, 3, 3)[:, :, :3, :3],
        groups=4,
    ),
    "recurrent": recur,
    "loss": lambda x: functional.cross_entropy(
        x.reshape(-1, 32), torch.arange(x.numel() // 32, device=x.device) % 32
    ),
    "softmax": lambda x: (x.softmax(-1), torch.softmax(x, -1, dtype=torch.float32), x.logsumexp(1)),
    "scans": lambda x: (x.cumsum(1), x.sigmoid().cumprod(-1), x.logcumsumexp(1), x.cummax(1)[0]),
    "indices": lambda x: (
        x.index_select(1, torch.arange(9, device=x.device)),
        x.scatter_add(1, torch.zeros_like(x, dtype=torch.long), x),
        functional.embedding(torch.arange(8, device=x.device).repeat(9), x[0]),
        x[x > 0],
        torch.where(x > 0, x, 0.0),
    ),
    "shapes": lambda x: (x.t() if x.dim() == 2 else x.mT.contiguous(), x.expand(2, *x.shape) + 1),
    "in place": lambda x: (x + 1).mul_(2).clamp_(-1, 1).masked_fill_(x > 0, 0.5),
    "inference": lambda x: torch.nn.functional.dropout(x, 0.5, training=False) * 2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", SOUND)
def test_sound_kernels_fail_in_no_form(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(48, 48, 32, generator=generator).to("cuda", dtype).requires_grad_()
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        found = SOUND[case](x)
        for one in found if isinstance(found, tuple) else (found,):
            for tensor in one if isinstance(one, tuple) else (one,):
                if tensor.requires_grad:
                    tensor.float().square().sum().backward(retain_graph=True)
    assert check.report.failures == ()
    assert check.report.checked


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_fail_in_no_form(tmp_path: Path, fused: bool) -> None:
    model = torch.nn.Linear(32, 32).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        for _ in range(3):
            model(torch.ones(4, 32, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert check.report.failures == ()
