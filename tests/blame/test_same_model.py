"""Two runs that are not of one model are not held against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tensorprobe import PrecisionDebugger, blame
from tensorprobe.blame.text import conclusion_lines


def capture(folder: Path, model: nn.Module, data: torch.Tensor, *, level: str = "L1") -> Path:
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level=level)
    debugger.start(model)
    torch.autograd.backward(model(data).pow(2).mean())
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


def pictures() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


def words() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.GELU(),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 5),
    )


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_two_unrelated_models_do_not_match(level: str, tmp_path: Path) -> None:
    one = capture(tmp_path / "one", pictures(), torch.randn(2, 3, 8, 8), level=level)
    other = capture(tmp_path / "other", words(), torch.randn(2, 8), level=level)
    answer = blame(one, other)
    assert answer.culprit is None
    assert answer.verdict == "nothing to compare"
    assert answer.summary.startswith("the two runs do not match")
    assert any(line.startswith("next        give two dumps") for line in conclusion_lines(answer))


def test_another_batch_is_the_same_model(tmp_path: Path) -> None:
    one = capture(tmp_path / "one", words(), torch.randn(2, 8))
    other = capture(tmp_path / "other", words(), torch.randn(3, 8))
    assert "do not match" not in blame(one, other).summary
