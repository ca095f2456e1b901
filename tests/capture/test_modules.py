"""A module's record has everything that its call was given, by place and by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import BOTH_WAYS, debugger_of_modules
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.names import is_parameter_gradients
from tensorprobe.records import CallRecord, ScalarValue, TensorValue


class Scaled(nn.Module):
    """Given everything but its first input by name; writes into one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, *, scale: Tensor, masks: dict[str, Tensor], buffer: Tensor, mode: str
    ) -> Tensor:
        assert mode == "sum"
        buffer.zero_()
        out: Tensor = self.linear(x) * scale + masks["added"]
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scaled(
            x * 1, scale=x * 2, masks={"added": x.sin()}, buffer=torch.ones(3), mode="sum"
        )
        return out


def capture(folder: Path, model: nn.Module, x: Tensor, **config: Any) -> dict[str, CallRecord]:
    path = folder / "config.json"
    path.write_text(json.dumps({"dump_path": str(folder / "dump"), **config}))
    debugger = PrecisionDebugger(path)
    debugger.start(model)
    model(x).exp().sum().backward()
    debugger.stop()
    debugger.close()
    return {call.name: call for call in open_dump(folder / "dump")}


# The compiler's own warning, on inputs that are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_inputs_given_by_name_are_recorded_as_they_were_before_the_call(
    tmp_path: Path, level: str, is_compiled: bool
) -> None:
    model = Model()
    if is_compiled:
        model.scaled.compile(backend="eager")
    x = torch.randn(2, 4, requires_grad=True)
    call = capture(tmp_path, model, x, level=level)["Module.scaled.Scaled.forward.0"]
    found = {".".join(leaf.path): leaf.value for leaf in call.leaves() if leaf.section == "kwargs"}
    assert list(found) == ["scale", "masks.added", "buffer", "mode"]
    assert found["mode"] == ScalarValue("str", "sum")
    for key, tensor in (("scale", x * 2), ("masks.added", x.sin()), ("buffer", torch.ones(3))):
        value = found[key]
        assert isinstance(value, TensorValue)
        assert value.norm == pytest.approx(tensor.norm().item())


def test_inputs_given_by_name_have_their_gradients_behind_the_others(tmp_path: Path) -> None:
    model = Model()
    x = torch.randn(2, 4, requires_grad=True)
    parts = [x.detach() * 1, x.detach() * 2, x.detach().sin()]
    given = [part.requires_grad_() for part in parts]
    out = model.scaled.linear(given[0]) * given[1] + given[2]
    expected = torch.autograd.grad(out.exp().sum(), given)
    call = capture(tmp_path, model, x, level="L0")["Module.scaled.Scaled.backward.0"]
    assert call.outputs is not None and len(call.outputs) == 4
    for value, gradient in zip(call.outputs, expected, strict=False):
        assert isinstance(value, TensorValue)
        assert value.norm == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert call.outputs[3] is None


@pytest.mark.parametrize(
    ("data_mode", "has_gradients"),
    [
        (["backward"], True),
        (["backward", "output"], True),
        (["output"], True),
        (["backward", "input"], False),
        (["forward"], False),
    ],
)
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_of_parameters_are_an_output_of_the_backward_pass(
    tmp_path: Path, level: str, data_mode: list[str], has_gradients: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    calls = capture(
        tmp_path, model, torch.randn(2, 4), level=level, statistics={"data_mode": data_mode}
    )
    assert ("Module.0.Linear.parameters_grad" in calls) == has_gradients
    assert any(".forward" in name for name in calls) == ("backward" not in data_mode)


def test_a_list_of_backward_calls_alone_has_their_modules_parameters_only(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    calls = capture(
        tmp_path,
        model,
        torch.randn(2, 4),
        level="L0",
        statistics={"data_mode": ["backward"], "list": ["Module.2."]},
    )
    assert set(calls) == {"Module.2.Linear.backward.0", "Module.2.Linear.parameters_grad"}


@pytest.mark.parametrize("is_transformed", [False, True])
def test_parameters_that_are_made_for_one_call_have_their_gradients(
    tmp_path: Path, is_transformed: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    parameters = {key: value.detach() for key, value in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, values, (torch.ones(2, 4),)).sum()

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    for _ in range(20):
        if is_transformed:
            torch.func.grad(loss)(parameters)
        else:
            loss({key: (v * 2).requires_grad_() for key, v in parameters.items()}).backward()
    debugger.stop()
    debugger.step()
    found = [r for r in open_dump(tmp_path) if is_parameter_gradients(r.name)]
    assert len(found) == 2 * 20
    assert all(set(record.parameters or {}) == {"weight", "bias"} for record in found)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@BOTH_WAYS
def test_a_scripted_module_is_a_module(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU())
    calls = capture(tmp_path, model, torch.randn(2, 4), level="L0", statistics={"list": listed})
    (scripted,) = (name for name in calls if name.startswith("Module.0.") and "forward" in name)
    assert set(calls[scripted].parameters or {}) == {"weight", "bias"}
    assert scripted.replace("forward", "backward") in calls
    assert not open_dump(tmp_path / "dump").gaps


@BOTH_WAYS
def test_parameters_that_are_views_written_into_since(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    model = nn.Linear(4, 4)
    given = torch.randn(2, 4)

    def train() -> Tensor:
        torch.manual_seed(1)
        leaf = torch.randn(24, requires_grad=True)
        flat = leaf * 1
        parts = {"weight": flat[:16].view(4, 4), "bias": flat[16:20], "unused": flat[20:]}
        flat.mul_(2)
        torch.func.functional_call(model, parts, (given,), strict=False).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    alone = train()
    with debugger_of_modules(tmp_path, listed, model):
        assert torch.equal(train(), alone)
    calls = {call.name: call for call in open_dump(tmp_path / "dump")}
    assert set(calls["Module.Linear.parameters_grad"].parameters or {}) == {"weight", "bias"}


class UsedFromOutside(nn.Module):
    """Most of what it holds is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
        self.shifts = nn.ParameterDict({"last": nn.Parameter(torch.zeros(4))})
        self.linear = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.called = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.called.weight

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.linear(x, self.linear.weight) * self.scales[0] * self.scales[1]
        x = self.called(self.attention(x, x, x)[0])
        return nn.functional.linear(x, self.tied.weight) + self.shifts["last"]


# The first by compiled code, the second by Python.
@pytest.mark.parametrize("data_mode", ["all", "backward"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_parameters_of_modules_that_are_never_called_have_their_gradients(
    tmp_path: Path, level: str, data_mode: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": level, "statistics": {"data_mode": [data_mode]}}))
    model = UsedFromOutside()
    with PrecisionDebugger(config, dump_path=tmp_path / "dump", model=model):
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
    part = open_dump(tmp_path / "dump").parts[0]
    modules = {
        "scales": "scales.ParameterList",
        "shifts": "shifts.ParameterDict",
        "linear": "linear.Linear",
        "attention": "attention.MultiheadAttention",
        "attention.out_proj": "attention.out_proj.NonDynamicallyQuantizableLinear",
        # What is tied to a module that is called counts there.
        "called": "called.Linear",
    }
    ends = ("parameters_grad", "parameters_grad.1")
    assert {name for name in part.names if is_parameter_gradients(name)} == {
        f"Module.{name}.{end}" for name in modules.values() for end in ends
    }
    for path, name in modules.items():
        recorded = part.call(f"Module.{name}.parameters_grad.1").parameters
        assert recorded is not None
        for key, value in recorded.items():
            gradient = model.get_parameter(f"{path}.{key}").grad
            assert gradient is not None and isinstance(value, TensorValue)
            assert value.max == pytest.approx(gradient.max().item())
