"""A dispatch mode of the user's sees the operators of the run, and none of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.dispatch_modes import count_dispatch_modes, without_dispatch_modes

WAYS: list[dict[str, Any]] = [
    {"level": "L0"},
    {"level": "mix"},
    {"level": "mix", "statistics": {"summary_mode": "md5"}},
    {"level": "mix", "task": "tensor"},
    {"level": "L1", "task": "overflow_check"},
    {"level": "L2"},
]
TAKEN_OVER = ("aten.detach", "aten.new_empty_strided", "aten.copy_")


class Listing(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    """With a tensor without dimensions, one that is not contiguous, and an input used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x).transpose(0, 1)[::2]
        return torch.cat([h, h * h.sum(), torch.addcmul(h, h, h)]).conj()


def debugger_for(folder: Path, config: dict[str, Any]) -> PrecisionDebugger:
    path = folder / "config.json"
    path.write_text(json.dumps({"dump_path": str(folder / "dump"), **config}))
    return PrecisionDebugger(path)


def train(model: nn.Module, x: Tensor) -> list[str]:
    with Listing() as listing:
        model(x).pow(2).mean().backward()
    # Autograd takes a gradient over, or copies it where somebody else holds it, as we may.
    return [name for name in listing.names if not name.startswith(TAKEN_OVER)]


@pytest.mark.parametrize("config", WAYS, ids=str)
def test_a_mode_of_the_user_sees_what_it_would_without_us(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    model = Model()
    x = torch.randn(3, 4)
    alone = train(model, x)
    model.zero_grad()
    with debugger_for(tmp_path, config):
        watched = train(model, x)
    assert watched == alone


@pytest.mark.skipif(
    not hasattr(checkpoint, "create_selective_checkpoint_contexts"), reason="not in this torch"
)
@pytest.mark.parametrize("config", WAYS[1:4], ids=str)
def test_selective_checkpointing_recomputes_under_a_capture_that_begins_after_it(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    keep_all: Callable[..., Any] = lambda *_, **__: checkpoint.CheckpointPolicy.MUST_SAVE  # noqa: E731
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, keep_all)
    model = Model()
    x = torch.randn(3, 4)

    def run(debugger: PrecisionDebugger | None) -> Tensor:
        model.zero_grad()
        out = checkpoint.checkpoint(model, x, use_reentrant=False, context_fn=contexts)
        if debugger is not None:
            debugger.start(model)
        out.pow(2).mean().backward()
        if debugger is not None:
            debugger.stop()
            debugger.close()
        assert model.linear.weight.grad is not None
        return model.linear.weight.grad

    alone = run(None)
    assert torch.equal(run(debugger_for(tmp_path, config)), alone)


def test_modes_come_back_in_their_order_also_after_an_error() -> None:
    with Listing() as outer, Listing() as inner:
        with pytest.raises(ZeroDivisionError), without_dispatch_modes():
            assert count_dispatch_modes() == 0
            torch.zeros(2).exp()
            raise ZeroDivisionError
        torch.ones(2).sin()
    assert any("sin" in name for name in inner.names)
    assert inner.names == outer.names
    assert not any("exp" in name for name in inner.names)
