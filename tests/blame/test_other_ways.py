"""Runs that make other calls, or go on after the backward pass, are judged by what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, blame
from tensorprobe.cli import main


class Model(nn.Module):
    """One layer of attention, whose parts can be left out, written otherwise or spoilt."""

    def __init__(
        self, *, is_fused: bool = False, has_norm: bool = True, scale: float = 1.0
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.is_fused, self.has_norm, self.scale = is_fused, has_norm, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        y = functional.layer_norm(x, (16,), self.norm.weight) if self.has_norm else x
        q, k, v = self.qkv(y).chunk(3, -1)
        if self.is_fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 4.0 * self.scale, -1) @ v
        return self.out(mixed).square().mean()


def capture(folder: Path, *, with_optimizer: bool = False, **options: object) -> Path:
    model = Model(**options)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
    debugger = PrecisionDebugger(dump_path=folder, level="mix", task="tensor")
    debugger.start(model)
    model(x).backward()
    if with_optimizer:
        optimizer.step()
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


def test_gradients_that_an_optimizer_reads_are_no_weights_from_outside(tmp_path: Path) -> None:
    bad = capture(tmp_path / "bad", with_optimizer=True, scale=1.05)
    good = capture(tmp_path / "good", with_optimizer=True)
    answer = blame(bad, good)
    assert answer.culprit is not None and answer.culprit.startswith("Tensor.__mul__")


def test_another_way_to_the_same_result_is_no_fault(tmp_path: Path) -> None:
    eager, fused = capture(tmp_path / "eager"), capture(tmp_path / "fused", is_fused=True)
    assert blame(eager, fused).culprit is None
    assert blame(fused, eager).culprit is None


def test_a_call_that_the_candidate_leaves_out_is_named(tmp_path: Path) -> None:
    skipped, whole = capture(tmp_path / "skipped", has_norm=False), capture(tmp_path / "whole")
    answer = blame(skipped, whole)
    assert answer.culprit == "Functional.layer_norm.0.forward"
    assert answer.accused[0].cause.kind == "missing call"
    extra = blame(whole, skipped)
    assert extra.culprit == "Functional.layer_norm.0.forward"
    assert extra.accused[0].cause.kind == "extra call"


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = capture(tmp_path / "bad"), capture(tmp_path / "good")
    file = bad / "step0" / "rank" / "dump.json"
    file.write_bytes(file.read_bytes()[:4000])
    assert main(["blame", str(bad), str(good)]) == 2
    assert "missing: " in capsys.readouterr().err
    assert main(["blame", str(good), str(good)]) == 0


def test_of_another_argument_there_is_nothing_to_prove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = capture(tmp_path / "bad", scale=1.05), capture(tmp_path / "good")
    assert main(["blame", str(bad), str(good), "--repro", str(tmp_path / "proof")]) == 0
    assert "the two runs tell it otherwise" in capsys.readouterr().out
    assert not (tmp_path / "proof").exists()


def test_a_gradient_that_changes_between_two_calls_is_named_where_it_arrives(
    tmp_path: Path,
) -> None:
    def train(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        first, second, data = nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(4, 8)
        with PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor"):
            hidden = first(data)
            # Numpy is not recorded.
            hidden.register_hook(lambda g: torch.from_numpy(g.numpy() * factor).float())
            second(functional.relu(hidden)).pow(2).mean().backward()
        return tmp_path / name

    reference = train("reference", 1.0)
    assert blame(train("same", 1.0), reference).verdict == "identical"
    answer = blame(train("candidate", 1.05), reference)
    assert answer.culprit == "Functional.linear.0.backward"
    assert answer.first is not None and answer.first.basis == "gap"
    assert "between two recorded calls" in answer.first.cause.text
