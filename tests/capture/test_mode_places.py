"""A capture begins and ends anywhere, also in the middle of somebody else's mode or a backward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from tensorprobe import PrecisionDebugger, open_dump

X = torch.ones(3, 4)


class Listener(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.heard.append(func.__name__)
        return func(*args, **(kwargs or {}))


def count_modes() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


@pytest.fixture(autouse=True)
def no_modes_stay() -> Iterator[None]:
    before = count_modes()
    yield
    assert count_modes() == before


def names(folder: Path, step: int = 0) -> list[str]:
    return list(open_dump(folder).part(step=step).names)


WITH_MODES = pytest.mark.parametrize("level", ["L1", "L2", "mix"])


@WITH_MODES
def test_a_device_that_ends_after_the_start_is_over(tmp_path: Path, level: str) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    with torch.device("meta"):
        debugger.start()
        inside = torch.ones(2)
    outside = torch.ones(2)
    debugger.step()
    assert (inside.device.type, outside.device.type) == ("meta", "cpu")
    assert len(names(tmp_path)) == 2


@WITH_MODES
def test_a_device_that_ends_after_the_stop_holds_until_then(tmp_path: Path, level: str) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start()
    with torch.device("meta"):
        debugger.stop()
        inside = torch.ones(2)
    outside = torch.ones(2)
    debugger.step()
    assert (inside.device.type, outside.device.type) == ("meta", "cpu")
    assert names(tmp_path) == []


@WITH_MODES
def test_modes_of_others_hear_all_that_they_would(tmp_path: Path, level: str) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    listener, counter = Listener(), FlopCounterMode(display=False)
    debugger.start()
    with listener, counter:
        X @ X.t()
        debugger.stop()
        X @ X.t()
        debugger.start()
    X @ X.t()
    debugger.stop()
    debugger.step()
    assert listener.heard == ["t", "matmul"] * 2
    assert counter.get_total_flops() == 2 * (2 * 3 * 3 * 4)
    # The first and the third.
    kinds = [name for name in names(tmp_path) if ".mm." in name or "matmul" in name]
    assert len(kinds) == 2


def test_the_default_device_may_change_in_a_capture(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    torch.set_default_device("meta")
    try:
        debugger.start()
        first = torch.ones(2)
        torch.set_default_device("cpu")
        second = torch.ones(2)
        debugger.stop()
    finally:
        torch.set_default_device(None)
    debugger.step()
    assert (first.device.type, second.device.type) == ("meta", "cpu")
    assert names(tmp_path) == ["Torch.ones.0.forward", "Torch.ones.1.forward"]


def test_operators_keep_their_spelling_below_a_mode(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    with Listener(), torch.device("cpu"):
        debugger.start()
        1 - X
        X.add(1)
        debugger.stop()
    debugger.step()
    assert names(tmp_path) == ["Tensor.__rsub__.0.forward", "Tensor.add.0.forward"]


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "mix"])
@pytest.mark.parametrize("ends_by", ["stop", "close"])
def test_a_capture_that_ends_inside_a_backward_pass_is_over(
    tmp_path: Path, level: str, ends_by: str
) -> None:
    before = count_modes()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(model)
    loss = model(X).sum()
    handle = model[2].weight.register_hook(lambda gradient: getattr(debugger, ends_by)())
    loss.backward()
    handle.remove()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # Torch had its modes back when the pass went on; nothing is recorded by them.
    model(X).sum().backward()
    debugger.step()
    assert count_modes() == before
    found = names(tmp_path)
    assert found and not any("parameters_grad" in name and "Module.0" in name for name in found)
    if level != "L2":
        assert not any(name.startswith("Functional.relu.1") for name in found)
    debugger.close()


@WITH_MODES
def test_a_start_inside_a_backward_pass_is_told_and_ignored(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    weight = torch.ones(3, requires_grad=True)
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    weight.register_hook(lambda gradient: debugger.start())
    (weight * 2).sum().backward()
    assert caplog.messages == [
        "start() inside a backward pass is ignored; call it before the forward pass"
    ]
    debugger.start()
    torch.sin(X)
    debugger.stop()
    debugger.step()
    assert len(names(tmp_path)) == 1
