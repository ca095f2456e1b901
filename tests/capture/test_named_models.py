"""Modules of several models have names of their own, however the models come."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe import PrecisionDebugger
from tensorprobe.capture.named_models import ModuleNames
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store import open_dump


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x))


@pytest.fixture
def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.fc.weight.mul_(2)
    return net, other


def read(path: Path) -> dict[str, CallRecord]:
    assert not list(path.rglob("dump_error_info.log"))
    return {record.name: record for record in open_dump(path)}


def weight_of(record: CallRecord) -> float:
    value: Any = (record.parameters or {})["weight"]
    assert isinstance(value, TensorValue) and value.max is not None
    return float(value.max)


def check(
    calls: dict[str, CallRecord], names: tuple[str, str], pair: tuple[Net, Net], *, level: str
) -> None:
    for name, net in zip(names, pair, strict=True):
        assert f"Module.{name}Net.forward.0" in calls
        assert f"Module.{name}Net.forward.1" not in calls
        assert f"Module.{name}act.Tanh.backward.0" in calls
        layer = calls[f"Module.{name}fc.Linear.forward.0"]
        assert weight_of(layer) == net.fc.weight.max().item()
        assert net.fc.weight.grad is not None
        gradients = calls[f"Module.{name}fc.Linear.parameters_grad"]
        assert weight_of(gradients) == net.fc.weight.grad.max().item()
    assert f"Module.{names[0]}fc.Linear.forward.1" not in calls
    assert ("Functional.linear.1.forward" in calls) == (level == "mix")


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    ("handed_over", "names"),
    [
        ("list", ("0.", "1.")),
        ("none", ("", "model1.")),
        ("first", ("", "model1.")),
        ("second", ("model1.", "")),
    ],
)
def test_two_models_with_the_same_paths_are_told_apart(
    tmp_path: Path, pair: tuple[Net, Net], level: str, handed_over: str, names: tuple[str, str]
) -> None:
    models: Any = {"list": list(pair), "none": None, "first": pair[0], "second": pair[1]}
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start(models[handed_over])
    x = torch.ones(2, 4)
    (pair[0](x).sum() + pair[1](x).pow(2).sum()).backward()
    debugger.stop()
    debugger.step()
    check(read(tmp_path), names, pair, level=level)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_second_start_with_another_model_keeps_the_names_of_the_first(
    tmp_path: Path, pair: tuple[Net, Net], level: str
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    for _ in range(2):
        for net in pair:
            net.zero_grad()
            debugger.start(net)
            net(torch.ones(2, 4)).pow(2).sum().backward()
            debugger.stop()
        debugger.step()
    calls = {r.name: r for r in open_dump(tmp_path).part(step=1).calls()}
    check(calls, ("", "model1."), pair, level=level)


def test_modules_without_parameters_count_together(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start()
    for _ in range(3):
        nn.MSELoss()(torch.ones(2), torch.zeros(2))
    debugger.stop()
    debugger.step()
    assert set(read(tmp_path)) == {f"Module.MSELoss.forward.{i}" for i in range(3)}


def test_models_of_one_structure_are_numbered_on(pair: tuple[Net, Net]) -> None:
    names = ModuleNames([("", pair[0])])
    paths = [names.path_of(model.fc) for model in pair]
    assert paths == ["fc", ""]
    assert names.path_of(Net()) == "model1"
    assert names.path_of(pair[1]) == "model2"
    assert names.path_of(pair[1].act) == "model2.act"
    # The layer was called before its model was, and keeps its name.
    assert names.path_of(pair[1].fc) == ""


def test_a_name_that_a_model_has_taken_is_passed_over() -> None:
    first = nn.ModuleDict({"model1": Net(), "fc": nn.Linear(4, 4)})
    names = ModuleNames([("", first)])
    assert names.path_of(Net().fc) == ""
    net = Net()
    assert (names.path_of(net), names.path_of(net.fc)) == ("model2", "model2.fc")


def test_names_keep_no_model_alive(pair: tuple[Net, Net]) -> None:
    names = ModuleNames([("", Net())])
    # Its name stays taken, whether or not its memory has been found to be free.
    assert names.path_of(pair[0]) == "model1"


def test_a_wrapper_around_a_named_model_changes_no_name(pair: tuple[Net, Net]) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapper = Wrapper(pair[0])
    names = ModuleNames([("", pair[0])])
    assert names.path_of(wrapper) == ""
    assert names.path_of(pair[0].fc) == "fc"
