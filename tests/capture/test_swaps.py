"""`torch.utils.swap_tensors` works on tensors that were watched, and what follows is recorded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from debugged import names, small_model, train_step
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import TensorValue

if not hasattr(torch.utils, "swap_tensors"):
    pytest.skip("this torch swaps no tensors", allow_module_level=True)
LEVELS = ["L0", "L1", "mix"]


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def convert(debugger: PrecisionDebugger | None, when: str) -> list[Tensor | None]:
    """Train, take in other weights and another type at some moment, and train on."""
    model = small_model()
    if debugger is not None:
        debugger.start(model)
    train_step(model)
    # Nobody has to collect garbage before.
    if debugger is not None and when != "inside":
        debugger.stop()
        if when == "after close":
            debugger.step()
            debugger.close()
    model.zero_grad()
    model.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})
    model.double()
    model(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
    if debugger is not None:
        debugger.close()
    return [*model.parameters(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("when", ["inside", "after stop", "after close"])
@pytest.mark.parametrize("task", ["statistics", "tensor", "overflow_check"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_model_is_converted_by_swapping(tmp_path: Path, level: str, task: str, when: str) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task=task)
    for alone, watched in zip(convert(None, when), convert(debugger, when), strict=True):
        assert alone is not None and watched is not None and torch.equal(alone, watched)


@pytest.mark.usefixtures("swapping")
def test_what_is_recorded_after_a_swap_is_of_what_is_inside_now(tmp_path: Path) -> None:
    convert(PrecisionDebugger(dump_path=tmp_path, level="mix"), "inside")
    part = open_dump(tmp_path).parts[0]
    calls = [part.call(f"Module.0.Linear.forward.{number}").parameters for number in (0, 1)]
    before, after = [{} if found is None else found["weight"] for found in calls]
    assert isinstance(before, TensorValue) and isinstance(after, TensorValue)
    assert (before.dtype, after.dtype) == ("torch.float32", "torch.float64")
    assert after.max == pytest.approx(before.max + 1)
    # The parameters are hooked again.
    assert [name for name in part.names if "Module.0.Linear.parameters_grad" in name] == [
        "Module.0.Linear.parameters_grad",
        "Module.0.Linear.parameters_grad.1",
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_swapped_to_and_fro(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger | None) -> tuple[list[Tensor], list[Tensor]]:
        model = small_model()
        averaged = copy.deepcopy(model)
        found: list[Tensor] = []
        for number in range(2):
            if debugger is not None:
                debugger.start(model)
            train_step(model)
            for _ in range(2):
                for one, other in zip(model.parameters(), averaged.parameters(), strict=True):
                    torch.utils.swap_tensors(one, other)
                if not number:
                    # A hook of the user's own on what has no other left.
                    model[0].weight.register_hook(found.append)
                train_step(model)
            if debugger is not None:
                debugger.stop()
        return [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ], found

    alone, heard_alone = run(None)
    with PrecisionDebugger(dump_path=tmp_path, level=level) as debugger:
        debugger.stop()
        watched, heard = run(debugger)
    assert all(map(torch.equal, alone, watched)) and len(alone) == len(watched) == 4
    assert all(map(torch.equal, heard_alone, heard)) and len(heard_alone) == len(heard) > 0


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_of_another_class_are_always_swapped(tmp_path: Path, level: str) -> None:
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    linear = nn.Linear(4, 2)
    with torch.no_grad():
        weight = two_tensor.TwoTensor(linear.weight.clone(), linear.weight.clone())
    linear.weight = nn.Parameter(weight)
    with PrecisionDebugger(dump_path=tmp_path, level=level, model=linear):
        train_step(linear)
        linear.zero_grad()
        linear.double()
        linear(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
    assert linear.weight.dtype == torch.float64
    grads = [name for name in names(tmp_path) if "parameters_grad" in name]
    assert len(grads) == (0 if level == "L1" else 2)


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("level", ["debug", "L1"])
def test_a_parameter_that_was_saved_is_swapped(tmp_path: Path, level: str) -> None:
    model = small_model()
    with PrecisionDebugger(dump_path=tmp_path, level=level) as debugger:
        debugger.save(model[0].weight, "weight")
        model.double()
        debugger.save(model[0].weight, "weight")
    data = names(tmp_path, file="debug.json")
    assert [name for name in data if "grad" not in name] == ["weight.0.debug", "weight.1.debug"]


@pytest.mark.usefixtures("swapping")
def test_a_module_that_is_dumped_alone_is_swapped(tmp_path: Path) -> None:
    from tensorprobe import module_dump, module_dump_end

    model = small_model()
    with PrecisionDebugger(dump_path=tmp_path, level="L0"):
        module_dump(model[0], "first")
        model[0](torch.ones(3, 4)).sum().backward()
        model[0].zero_grad()
        model[0].double()
        model[0](torch.ones(3, 4, dtype=torch.float64)).sum().backward()
        module_dump_end()
    assert "Module.first.Linear.parameters_grad.1" in names(tmp_path)
