"""Calls that only one run makes are named where they matter, at the ends or on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, blame


class Reader(nn.Module):
    """Causal attention over words, the last of which may be hidden by a mask made in the run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor, *, hides_last: bool) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(ids.shape[1])
        mask = places[None] <= places[:, None]
        if hides_last:
            mask = mask & (places != ids.shape[1] - 1)
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(~mask, -1e4)
        return self.out(x + torch.softmax(scores, -1) @ v)


def capture(folder: Path, task: str, *, hides_last: bool) -> Path:
    model, ids = Reader(), torch.arange(12).reshape(2, 6)
    with PrecisionDebugger(dump_path=str(folder), task=task):
        scores = model(ids, hides_last=hides_last)
        # What the last word leads to is not learnt from.
        functional.cross_entropy(scores[:, :-1].reshape(-1, 20), ids[:, 1:].reshape(-1)).backward()
    return folder


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_mask_that_more_calls_make_is_named_though_the_ends_agree(
    task: str, tmp_path: Path
) -> None:
    plain = capture(tmp_path / "plain", task, hides_last=False)
    masked = capture(tmp_path / "masked", task, hides_last=True)
    extra = blame(masked, plain).first
    assert extra is not None and extra.cause.kind == "extra call"
    assert extra.call in ("Tensor.__ne__.0.forward", "Tensor.__and__.0.forward")
    assert "the runs end in the same results all the same" in extra.cause.text
    # Of a mask statistics tell nothing; that it is another one shows in what it is used for.
    shown = {
        "tensor": "__invert__.0.forward.input.0",
        "statistics": "masked_fill.0.forward.input.1",
    }
    assert f"first Tensor.{shown[task]}" in extra.cause.text
    missing = blame(plain, masked).first
    assert missing is not None and missing.cause.kind == "missing call"
    assert blame(plain, plain).verdict == "identical"


def test_calls_of_one_change_are_told_once(tmp_path: Path) -> None:
    plain = capture(tmp_path / "plain", "tensor", hides_last=False)
    masked = capture(tmp_path / "masked", "tensor", hides_last=True)
    assert len(blame(masked, plain).accused) == 1


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_another_activation_is_named_though_the_ends_hardly_differ(
    task: str, tmp_path: Path
) -> None:
    def train(name: str, *, is_exact: bool) -> Path:
        torch.manual_seed(0)
        first, second = nn.Linear(16, 64), nn.Linear(64, 16)
        weight, data = nn.Parameter(torch.randn(16, 4)), torch.randn(32, 16)
        with PrecisionDebugger(dump_path=str(tmp_path / name), task=task):
            x = first(data)
            cubed = 0.7978845608 * (x + 0.044715 * torch.pow(x, 3))
            x = functional.gelu(x) if is_exact else 0.5 * x * (1 + torch.tanh(cubed))
            loss = torch.addmm(torch.ones(4), torch.tanh(second(x)), weight).mean() * 1e-4 + 1
            loss.backward()
        return tmp_path / name

    answer = blame(train("candidate", is_exact=True), train("reference", is_exact=False))
    assert answer.culprit == "Functional.gelu.0.forward"


def test_a_change_in_place_is_told_once(tmp_path: Path) -> None:
    def run(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        layer, data = nn.Linear(8, 8), torch.randn(4, 8)
        with PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor"):
            hidden = functional.gelu(layer(data))
            if factor != 1:
                hidden.data.mul_(factor)
            functional.silu(hidden.detach().clone())
        return tmp_path / name

    answer = blame(run("candidate", 1.01), run("reference", 1.0))
    assert [accused.cause.kind for accused in answer.accused] == ["extra call"]
