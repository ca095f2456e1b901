"""Which calls are recorded: list, scope, data_mode and tensor_list, in real captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, load_config
from tensorprobe.capture.filters import CallFilter
from tensorprobe.config import Config
from tensorprobe.errors import ConfigError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.fc(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.middle = Block()
        self.last = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + 1
        x = self.middle(x) * 2
        result: torch.Tensor = self.last(x)
        return torch.sigmoid(result)


def capture(folder: Path, **fields: Any) -> dict[str, Any]:
    """Capture one training step and return the entries of its dump."""
    torch.manual_seed(0)
    model = Model()
    debugger = PrecisionDebugger.from_config(load_config(dump_path=folder, **fields), model)
    debugger.start()
    model(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    entries: dict[str, Any] = json.loads((folder / "step0/rank/dump.json").read_text())["data"]
    return entries


def construct(folder: Path) -> dict[str, str | None]:
    tree: dict[str, str | None] = json.loads((folder / "step0/rank/construct.json").read_text())
    return tree


# --- list -------------------------------------------------------------------------------------


def test_a_list_keeps_calls_by_whole_names_and_parts(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=["relu", "Torch.sigmoid.0.backward"])
    assert set(calls) == {
        *(f"Functional.relu.{n}.{way}" for n in range(3) for way in ("forward", "backward")),
        "Torch.sigmoid.0.backward",
    }


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_a_list_that_names_no_call_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    assert capture(tmp_path, list=["relo", "Torch.nothing"], level=level) == {}
    assert caplog.messages == [
        "a step has no call that list names, relo, Torch.nothing: nothing of it is recorded; "
        "construct.json has the names of all calls at the levels L0 and mix"
    ]


def test_numbers_of_calls_do_not_depend_on_the_list(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=["Functional.linear.2.forward"])
    assert set(calls) == {"Functional.linear.2.forward"}


def test_a_regular_expression_matches_from_the_start(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=[r"name-regex(Functional\.\w+\.[01]\.forward)"])
    assert set(calls) == {
        "Functional.linear.0.forward",
        "Functional.linear.1.forward",
        "Functional.relu.0.forward",
        "Functional.relu.1.forward",
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("name-regex(relu[)", "unterminated character set at position 4"),
        ("name-regex(relu", "the last bracket is missing"),
        ("name-regex(a{99999999999999999999})", "the repetition number is too large"),
    ],
)
def test_a_broken_regular_expression_is_refused_at_once(
    tmp_path: Path, entry: str, problem: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"statistics": {"list": ["relu", entry]}}))
    rest = (
        f" holds {entry!r}, wanted a regular expression in the brackets: {problem}; mend it, or "
        "write a part of a name alone, such as 'relu'"
    )
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(file, dump_path=tmp_path)
    assert str(caught.value) == f"{file}: statistics.list{rest}"
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger.from_config(load_config(file, list=[], tensor_list=[entry]))
    assert str(caught.value) == f"argument tensor_list{rest}"


def test_a_scope_in_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"statistics": {"scope": ["relu", "relu"]}}))
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(file, dump_path=tmp_path)
    assert str(caught.value).startswith(f"{file}: statistics.scope holds 'relu', wanted the whole")


def test_a_listed_module_is_unfolded_at_level_mix(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=["middle.Block"], level="mix")
    assert set(calls) - {"Module.middle.fc.Linear.parameters_grad"} == {
        "Module.middle.Block.forward.0",
        "Module.middle.fc.Linear.forward.0",
        "Functional.linear.1.forward",
        "Functional.relu.1.forward",
        "Module.middle.Block.backward.0",
        "Module.middle.fc.Linear.backward.0",
        "Functional.linear.1.backward",
        "Functional.relu.1.backward",
    }


def test_a_module_call_by_its_whole_name_unfolds_that_direction(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=["Module.first.Block.forward.0"], level="mix")
    assert set(calls) - {"Module.first.fc.Linear.parameters_grad"} == {
        "Module.first.Block.forward.0",
        "Module.first.fc.Linear.forward.0",
        "Functional.linear.0.forward",
        "Functional.relu.0.forward",
    }


def test_at_level_l0_a_list_keeps_what_it_names(tmp_path: Path) -> None:
    calls = capture(tmp_path, list=["first.Block.forward"], level="L0")
    assert set(calls) == {"Module.first.Block.forward.0"}


def test_the_tree_of_modules_is_not_filtered(tmp_path: Path) -> None:
    capture(tmp_path / "all", level="mix", data_mode=["forward"])
    capture(tmp_path / "some", level="mix", data_mode=["forward"], list=["sigmoid"])
    assert construct(tmp_path / "some") == construct(tmp_path / "all")


# --- scope ------------------------------------------------------------------------------------


def test_a_scope_of_api_calls_holds_both_ends_and_what_is_between(tmp_path: Path) -> None:
    calls = capture(tmp_path, scope=["Functional.relu.0.forward", "Functional.relu.1.forward"])
    assert list(calls) == [
        "Functional.relu.0.forward",
        "Tensor.__add__.0.forward",
        "Functional.linear.1.forward",
        "Functional.relu.1.forward",
    ]
    assert calls["Functional.relu.1.forward"]["output"]


def test_a_scope_may_reach_from_forward_into_backward(tmp_path: Path) -> None:
    calls = capture(tmp_path, scope=["Torch.sigmoid.0.forward", "Functional.relu.2.backward"])
    assert list(calls) == [
        "Torch.sigmoid.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Torch.sigmoid.0.backward",
        "Functional.relu.2.backward",
    ]


def test_the_same_call_twice_is_a_scope_of_one(tmp_path: Path) -> None:
    calls = capture(tmp_path, scope=["Tensor.__mul__.0.forward", "Tensor.__mul__.0.forward"])
    assert list(calls) == ["Tensor.__mul__.0.forward"]


def test_a_scope_of_modules_covers_what_happens_inside(tmp_path: Path) -> None:
    calls = capture(
        tmp_path,
        level="mix",
        scope=["Module.middle.Block.forward.0", "Module.last.Block.forward.0"],
    )
    assert {name for name in calls if "parameters_grad" not in name} == {
        "Module.middle.Block.forward.0",
        "Module.middle.fc.Linear.forward.0",
        "Functional.linear.1.forward",
        "Functional.relu.1.forward",
        "Tensor.__mul__.0.forward",
        "Module.last.Block.forward.0",
        "Module.last.fc.Linear.forward.0",
        "Functional.linear.2.forward",
        "Functional.relu.2.forward",
    }
    for end in ("middle", "last"):
        entry = calls[f"Module.{end}.Block.forward.0"]
        assert entry["input_args"] and entry["output"]


def test_a_scope_that_ends_inside_its_first_module_keeps_that_whole(tmp_path: Path) -> None:
    calls = capture(
        tmp_path,
        level="mix",
        scope=["Module.middle.Block.forward.0", "Functional.linear.1.forward"],
    )
    assert {name for name in calls if "parameters_grad" not in name} == {
        "Module.middle.Block.forward.0",
        "Module.middle.fc.Linear.forward.0",
        "Functional.linear.1.forward",
    }
    assert calls["Module.middle.Block.forward.0"]["output"]


@pytest.mark.parametrize("last", ["Module.middle.Block.backward.0", "Module.last.Block.backward.0"])
def test_a_scope_of_backward_modules_covers_what_happens_inside(tmp_path: Path, last: str) -> None:
    """The backward of a module and of what ran inside it come in no fixed order."""
    calls = capture(tmp_path, level="mix", scope=["Module.last.Block.backward.0", last])
    expected = {
        "Module.last.Block.backward.0",
        "Module.last.fc.Linear.backward.0",
        "Functional.linear.2.backward",
        "Functional.relu.2.backward",
    }
    if "middle" in last:
        expected |= {
            "Tensor.__mul__.0.backward",
            "Module.middle.Block.backward.0",
            "Module.middle.fc.Linear.backward.0",
            "Functional.linear.1.backward",
            "Functional.relu.1.backward",
        }
    assert {name for name in calls if "parameters_grad" not in name} == expected


def test_list_and_scope_hold_together(tmp_path: Path) -> None:
    calls = capture(
        tmp_path,
        scope=["Functional.relu.0.forward", "Functional.relu.1.forward"],
        list=["linear", "sigmoid"],
    )
    assert list(calls) == ["Functional.linear.1.forward"]


def test_a_scope_whose_first_call_does_not_come_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = capture(tmp_path, scope=["Torch.tan.0.forward", "Torch.tan.1.forward"])
    assert calls == {}
    assert caplog.messages == [
        "step 0: the scope begins with Torch.tan.0.forward, which did not come; nothing is recorded"
    ]


def test_a_scope_whose_last_call_does_not_come_after_its_first_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = capture(tmp_path, scope=["Functional.relu.1.forward", "Functional.relu.0.forward"])
    assert next(iter(calls)) == "Functional.relu.1.forward" and len(calls) > 1
    assert caplog.messages == [
        "step 0: the scope ends with Functional.relu.0.forward, which did not come after its "
        "beginning; all that came from there on is recorded"
    ]


@pytest.mark.parametrize(
    ("level", "name", "message"),
    [
        ("L1", "relu", "scope holds 'relu', wanted the whole name of a call, such as "),
        ("L1", "x.0.debug", "scope holds 'x.0.debug', wanted the whole name of a call"),
        (
            "L1",
            "Module.fc.Linear.forward.0",
            "scope holds 'Module.fc.Linear.forward.0', a call of a module, but level L1 watches "
            "API calls alone; use level 'mix'",
        ),
        (
            "L0",
            "Torch.relu.0.forward",
            "scope holds 'Torch.relu.0.forward', a call of an API, but level L0 watches modules "
            "alone; use level 'mix'",
        ),
    ],
)
def test_a_scope_that_cannot_be_is_refused(level: Any, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CallFilter(Config(level=level, scope=(name, name)))
    assert str(caught.value).startswith(message)


# --- data_mode and tensor_list ----------------------------------------------------------------


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_data_mode_keeps_one_side_of_one_direction(tmp_path: Path, level: str) -> None:
    calls = capture(tmp_path, level=level, data_mode=["forward", "input"])
    assert calls and not any("backward" in name for name in calls)
    for name, entry in calls.items():
        assert "output" not in entry and "input_args" in entry, name


def test_data_mode_keeps_the_outputs_of_the_backward_alone(tmp_path: Path) -> None:
    calls = capture(tmp_path, data_mode=["backward", "output"])
    assert calls and all(set(entry) == {"output"} for entry in calls.values())


def test_a_tensor_list_adds_the_data_of_its_calls_to_statistics(tmp_path: Path) -> None:
    calls = capture(tmp_path, task="statistics", tensor_list=["relu"])
    files = sorted(p.name for p in (tmp_path / "step0/rank/dump_tensor_data").iterdir())
    assert files and all(name.startswith("Functional.relu.") for name in files)
    assert len(files) == 3 * 4
    # The output of a linear is the input of a relu: seen before, but without its data.
    assert "data_name" not in calls["Functional.linear.0.forward"]["output"][0]
    assert calls["Functional.relu.0.forward"]["input_args"][0]["data_name"] in files
    assert "data_name" not in calls["Tensor.__add__.0.forward"]["input_args"][0]
    assert len(calls) > 20
