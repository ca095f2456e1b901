"""A backward that somebody wrote, with calls of its own inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger
from tensorprobe.blame import blame
from tensorprobe.blame.rules.own_backward import frame_in_backward
from tensorprobe.records import Frame


class OwnSilu(torch.autograd.Function):
    """Its backward lacks a term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch._C._nn.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(x)


class Louder(torch.autograd.Function):
    """Multiplies the gradient that goes through it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.02


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(8, 16), nn.Linear(16, 4), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.kind == "louder":
            h = Louder.apply(h)
        h = OwnSilu.apply(h) if self.kind == "silu" else functional.silu(h)
        scores: torch.Tensor = self.second(h)
        return scores


def capture(folder: Path, kind: str, task: str, level: str) -> Path:
    torch.manual_seed(1)
    model = Net(kind)
    x = torch.randn(6, 8)
    debugger = PrecisionDebugger(task=task, dump_path=str(folder), level=level)
    debugger.start(model)
    model(x).pow(2).mean().backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_the_gradient_is_named_and_the_line_of_its_backward(
    tmp_path: Path, task: str, level: str
) -> None:
    candidate = capture(tmp_path / "a", "silu", task, level)
    reference = capture(tmp_path / "b", "plain", task, level)
    first = blame(candidate, reference).first
    assert first is not None
    assert first.call == "Functional.silu.0.backward"
    assert first.gradient_only and first.cause.kind == "computation"
    assert (
        "only the candidate computes this gradient with a backward of its own" in first.cause.text
    )
    assert first.frame is not None and first.frame.function == "backward"
    assert "sigmoid" in first.frame.source
    back = blame(reference, candidate).first
    assert back is not None and back.call == first.call
    assert "only the reference computes" in back.cause.text


def test_what_receives_the_gradient_is_named_where_nothing_stands_in_its_place(
    tmp_path: Path,
) -> None:
    candidate = capture(tmp_path / "a", "louder", "tensor", "L1")
    reference = capture(tmp_path / "b", "plain", "tensor", "L1")
    first = blame(candidate, reference).first
    assert first is not None
    assert (first.call, first.value_path) == ("Functional.linear.0.backward", "input.0")
    assert first.gradient_only and first.cause.kind == "scale"
    assert "1.02 times" in first.cause.text
    assert first.frame is not None and first.frame.source == "return gradient * 1.02"


def test_what_torch_computes_again_is_no_backward_of_the_users() -> None:
    apply = Frame("/site-packages/torch/autograd/function.py", 325, "apply", "")
    again = Frame("/site-packages/torch/utils/checkpoint.py", 9, "backward", "")
    own = Frame("/home/me/model.py", 9, "backward", "return g * s")
    forward = Frame("/home/me/model.py", 5, "forward", "return x * s")
    assert frame_in_backward((own, apply)) == own
    assert frame_in_backward((forward, again, apply)) is None
    assert frame_in_backward((forward, apply)) is None
    assert frame_in_backward((own,)) is None
