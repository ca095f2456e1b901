"""Calls that repeat others in a backward pass are told from those that are new there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_runs import Capture, capturing, leaves
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    with capturing(tmp_path, caplog) as running:
        yield running


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.square(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.mul(gradients[0], x).add(gradients[0] * x)


class Rotary(nn.Module):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(Square.apply(torch.sin(x)) * self.rotary(x))  # type: ignore[no-untyped-call]
        return result


class OwnCheckpoint(torch.autograd.Function):
    """As in frameworks that do not use torch's."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        with torch.enable_grad():
            result = ctx.run(x)
        torch.autograd.backward(result, gradients)
        return None, x.grad


REPEATED = ("Torch.sin", "Torch.square", "Torch.cos")


def by_torch(use_reentrant: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    def run(block: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(block, x, use_reentrant=use_reentrant)
        return result

    return run


@pytest.mark.parametrize(
    "run",
    [
        by_torch(use_reentrant=False),
        by_torch(use_reentrant=True),
        OwnCheckpoint.apply,
    ],
    ids=["torch", "torch, reentrant", "own"],
)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_calls_without_gradients_are_repeated_like_those_around_them(
    capture: Capture, run: Callable[[nn.Module, Tensor], Tensor], level: str
) -> None:
    block = Block()
    (x,) = leaves((3, 4))
    captured = capture(lambda: run(block, x).sum().backward(), level=level, model=block)
    if level != "L0":
        for name in REPEATED:
            again = [captured.is_recompute(f"{name}.{number}.forward") for number in range(2)]
            assert again == [False, True], name
        # The backward of the function is no repetition.
        assert captured.is_recompute("Torch.mul.0.forward") is False
        assert captured.is_recompute("Tensor.add.0.forward") is False
    if level != "L1":
        for name in ("Module.rotary.Rotary", "Module.last.Linear"):
            again = [captured.is_recompute(f"{name}.forward.{number}") for number in range(2)]
            assert again == [False, True], name


def test_a_function_that_is_repeated_without_a_module(capture: Capture) -> None:
    (x,) = leaves((3, 4))
    captured = capture(lambda: OwnCheckpoint.apply(torch.sin, x).sum().backward())  # type: ignore[no-untyped-call]
    again = [captured.is_recompute(f"Torch.sin.{number}.forward") for number in range(2)]
    assert again == [False, True]


def test_nothing_is_repeated_where_a_pass_makes_a_graph(capture: Capture) -> None:
    (x,) = leaves((3, 4))

    def run() -> None:
        (gradient,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
        gradient.pow(2).sum().backward()
        # The next pass makes none.
        OwnCheckpoint.apply(torch.sin, x).sum().backward()  # type: ignore[no-untyped-call]

    captured = capture(run)
    for name in ("Torch.mul.0", "Tensor.__mul__.0", "Tensor.add.0", "Tensor.pow.0"):
        assert captured.is_recompute(f"{name}.forward") is False, name
    assert captured.is_recompute("Torch.sin.1.forward") is True
