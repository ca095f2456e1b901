"""A failure names the line that made its call or, in a backward pass, what that belongs to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import WrongKernel
from torch.utils.checkpoint import checkpoint

from tensorprobe import OnlineCheck
from tensorprobe.online import places


def place_of(folder: Path, run: Callable[[], object], operator: str, call: int = 1) -> str:
    """Return the place of the one failure, by what its line says."""
    with WrongKernel(operator, call), OnlineCheck(path=folder, quiet=True) as check:
        run()
    (failure,) = check.report.failures
    file, _, line = failure.place.partition(" in ")[0].rpartition(":")
    assert file == __file__
    return Path(__file__).read_text().splitlines()[int(line) - 1].strip()


def test_what_makes_no_node_does_not_take_the_place_of_what_did(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.randn(3, 4, requires_grad=True)
        y = x.relu()
        mask = torch.ones(3, 4) * 2
        z = y.tanh()
        (z * mask).sum().backward(torch.ones(()) * 1)

    assert place_of(tmp_path, run, "threshold_backward") == "y = x.relu()"
    assert place_of(tmp_path, run, "tanh_backward") == "z = y.tanh()"


class Cubed(torch.autograd.Function):
    """A Function of the user's own, with operators both ways."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x.square().mul(3)


def test_in_the_backward_of_a_function_it_is_the_line_there(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.randn(5, requires_grad=True)
        Cubed.apply(x).sum().backward()

    assert place_of(tmp_path, run, "mul") == "return grads[0] * x.square().mul(3)"
    assert place_of(tmp_path, run, "pow", 1) == "return x.pow(3)"


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_what_checkpointing_repeats_has_its_own_line_and_so_has_its_backward(
    tmp_path: Path, is_reentrant: bool
) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        return y.tanh()

    def run() -> None:
        x = torch.randn(5, requires_grad=True)
        checkpoint(block, x * 2, use_reentrant=is_reentrant).exp().sum().backward()

    assert place_of(tmp_path, run, "sigmoid", 2) == "y = x.sigmoid()"
    assert place_of(tmp_path, run, "tanh", 1) == "return y.tanh()"
    assert place_of(tmp_path, run, "tanh_backward") == "return y.tanh()"
    assert place_of(tmp_path, run, "sigmoid_backward") == "y = x.sigmoid()"


def test_of_very_many_calls_the_oldest_places_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_MOST", 4)

    def run() -> None:
        x = torch.randn(5, requires_grad=True)
        y = x.tanh()
        for _ in range(5):
            y = y.sin()
        y.sum().backward()

    assert place_of(tmp_path, run, "cos", 1) == "y = y.sin()"
    assert "backward()" in place_of(tmp_path, run, "tanh_backward")
