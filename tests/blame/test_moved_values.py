"""Values in other places: no statistic shows them, but a sum does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from planted import Kernels, aten
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, blame


def capture(folder: Path, kernels: Kernels | None = None) -> Path:
    torch.manual_seed(0)
    layer, bias = nn.Linear(16, 16), nn.Parameter(torch.randn(6, 30))
    data, index = torch.randn(4, 6, 16), torch.randint(0, 30, (6, 16))
    with PrecisionDebugger(dump_path=str(folder), task="statistics"), kernels or Kernels():
        normed = functional.layer_norm(data, (16,))
        mixed = data + layer(normed)
        (torch.tanh(mixed) + torch.gather(bias, 1, index) * 0.5).sum().backward()
    return folder


def rolled(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    return result.roll(1, -1)


def test_who_picked_values_is_named_not_the_sum_that_shows_it(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference")
    first = blame(capture(tmp_path / "candidate", Kernels(aten.gather, 0, rolled)), reference).first
    assert first is not None
    assert (first.call, first.cause.kind) == ("Torch.gather.0.forward", "indices")
    assert "Tensor.__add__.1.forward.output.0" in first.cause.text


def test_who_made_the_only_new_term_is_named(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference")
    kernels = Kernels(aten.addmm, 0, lambda result, args: result.roll(1, 0))
    answer = blame(capture(tmp_path / "candidate", kernels), reference)
    assert answer.culprit == "Functional.linear.0.forward"


def test_a_wrong_sum_is_wrong_itself(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference")
    kernels = Kernels(aten.add, 0, lambda result, args: result * 1.01)
    answer = blame(capture(tmp_path / "candidate", kernels), reference)
    assert answer.culprit == "Tensor.__add__.0.forward"
