"""Values that a user saves by name, and their gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tensorprobe import PrecisionDebugger, open_dump, save


def entries(folder: Path, step: int = 0, rank: str = "rank") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"step{step}/{rank}/debug.json").read_text())
    return found["data"]  # type: ignore[no-any-return]


def test_a_value_and_its_gradient_are_saved_without_a_start(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    for step in range(2):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        debugger.save(y, "y")
        (y * (step + 1)).sum().backward()
        debugger.step()
    assert list(entries(tmp_path)) == ["y.0.debug", "y_grad.0.debug"]
    assert entries(tmp_path, 1)["y.0.debug"]["Max"] == 2.0
    assert entries(tmp_path, 1)["y_grad.0.debug"]["Max"] == 2.0


def test_only_debug_json_is_written_at_level_debug(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    save(torch.ones(2), "x")
    PrecisionDebugger.step()
    assert [path.name for path in (tmp_path / "step0/rank").iterdir()] == ["debug.json"]
    (part,) = open_dump(tmp_path).parts
    assert part.info.level == "debug"


def test_start_and_stop_may_stand_around_at_level_debug(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    debugger.start()
    torch.relu(torch.ones(2))
    save(torch.ones(2), "inside")
    debugger.stop()
    save(torch.ones(2), "after")
    debugger.step()
    assert {name for name in entries(tmp_path) if "_grad" not in name} == {
        "inside.0.debug",
        "after.0.debug",
    }


def test_each_use_of_a_name_counts_within_its_step(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    for _ in range(2):
        for number in range(3):
            save(number, "n", save_backward=False)
        save(1.5, "layer.0.weight", save_backward=False)
        debugger.step()
    for step in range(2):
        assert list(entries(tmp_path, step)) == [
            "n.0.debug",
            "n.1.debug",
            "n.2.debug",
            "layer.0.weight.0.debug",
        ]
    assert entries(tmp_path)["n.2.debug"] == {"type": "int", "value": 2}


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_nested_values_and_the_same_nesting_of_their_gradients(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug", task="tensor")
    x = torch.ones(2, requires_grad=True)
    a, b = x * 2, x * 3
    value = {
        "key1": a,
        "key2": [torch.zeros(1), (b, 3)],
        "pair": Pair(a + 1, "text"),
        "none": None,
        "empty": [],
    }
    save(value, "nested")
    (a.sum() + 5 * b.sum() + value["pair"].left.sum()).backward()  # type: ignore[attr-defined]
    PrecisionDebugger.step()
    saved = entries(tmp_path)["nested.0.debug"]
    assert saved["key2"][1][1] == {"type": "int", "value": 3}
    assert saved["none"] is None and saved["empty"] == []
    gradients = entries(tmp_path)["nested_grad.0.debug"]
    assert gradients["key1"]["Max"] == 2.0
    assert gradients["key2"][0] is None
    assert gradients["key2"][1][0]["Max"] == 5.0
    assert gradients["key2"][1][1] is None
    assert gradients["pair"]["left"]["Max"] == 1.0 and gradients["pair"]["right"] is None
    assert gradients["none"] is None and gradients["empty"] == []
    files = {path.name for path in (tmp_path / "step0/rank/dump_tensor_data").iterdir()}
    assert "nested.0.debug.key2.1.0.pt" in files and "nested_grad.0.debug.key2.1.0.pt" in files


def test_values_without_a_gradient_hold_null(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    save(3, "number")
    save(torch.ones(2), "constant")
    with torch.no_grad():
        save(torch.ones(2, requires_grad=True) * 2, "no_grad")
    never = torch.ones(2, requires_grad=True) * 2
    save([never, 1], "never_used")
    PrecisionDebugger.step()
    saved = entries(tmp_path)
    assert saved["number_grad.0.debug"] is None
    assert saved["constant_grad.0.debug"] is None
    assert saved["no_grad_grad.0.debug"] is None
    assert saved["never_used_grad.0.debug"] == [None, None]


def test_gradients_that_came_are_kept_where_others_did_not(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    x = torch.ones(2, requires_grad=True)
    used, unused = x * 2, x * 3
    save((used, unused), "both")
    used.sum().backward()
    PrecisionDebugger.step()
    first, second = entries(tmp_path)["both_grad.0.debug"]
    assert first["Max"] == 1.0 and second is None


def test_each_save_of_a_leaf_gets_the_gradient_of_the_next_pass(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    weight = torch.ones(2, requires_grad=True)
    for factor in (1.0, 10.0):
        save(weight, "weight")
        (weight * factor).sum().backward()
    PrecisionDebugger.step()
    assert entries(tmp_path)["weight_grad.0.debug"]["Max"] == 1.0
    assert entries(tmp_path)["weight_grad.1.debug"]["Max"] == 10.0


def test_a_value_is_saved_as_it_is_at_that_moment(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug", task="tensor")
    x = torch.ones(2)
    save(x, "x")
    x.add_(1)
    save(x, "x")
    PrecisionDebugger.step()
    assert entries(tmp_path)["x.0.debug"]["Max"] == 1.0
    assert entries(tmp_path)["x.1.debug"]["Max"] == 2.0


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_at_other_levels_debug_json_stands_beside_dump_json(tmp_path: Path, level: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level, task="tensor")
    for _ in range(2):
        debugger.start(model)
        y = model(torch.ones(2, 4))
        save(y, "y")
        y.sum().backward()
        debugger.stop()
        save(y, "after")
        debugger.step()
    for step in range(2):
        folder = tmp_path / f"step{step}/rank"
        assert list(entries(tmp_path, step)) == ["y.0.debug", "y_grad.0.debug"]
        calls = json.loads((folder / "dump.json").read_text())["data"]
        assert calls and not any("debug" in name for name in calls)
        assert (folder / "dump_tensor_data/y.0.debug.pt").exists()
        assert not list(folder.glob("*.part"))
        assert sorted(p.info.level or "" for p in open_dump(folder).parts) == sorted(
            ["debug", level]
        )


def test_saving_is_no_call_of_its_own(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    x = torch.ones(2, requires_grad=True) * 2
    before = json.dumps(sorted(debugger._session.recorder._counters))  # type: ignore[union-attr]
    save({"x": x}, "x")
    assert before == json.dumps(sorted(debugger._session.recorder._counters))  # type: ignore[union-attr]
    debugger.step()


def test_no_hook_stays_on_a_saved_tensor(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    weight = torch.ones(2, requires_grad=True)
    debugger.start()
    save(weight, "weight")
    assert weight._backward_hooks
    debugger.stop()
    assert not weight._backward_hooks


def test_an_unwanted_step_saves_nothing(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug", step=[1])
    for _ in range(3):
        save(torch.ones(1), "x")
        debugger.step()
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]


def test_a_name_that_is_none_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    save(torch.ones(1), 3)  # type: ignore[arg-type]
    assert caplog.messages == ["save() got 3 for a name, wanted a text; nothing is saved"]
    assert not list(tmp_path.iterdir())


def test_any_name_becomes_a_file(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug", task="tensor")
    save(torch.ones(2), "loss/../a b", save_backward=False)
    PrecisionDebugger.step()
    (part,) = open_dump(tmp_path).parts
    (call,) = part
    assert call.name == "loss/../a b.0.debug"
    (file,) = (tmp_path / "step0/rank/dump_tensor_data").iterdir()
    assert torch.load(file).tolist() == [1.0, 1.0]


def test_an_object_that_no_dump_can_hold_is_named(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path, level="debug")
    save([object(), torch.ones(1)], "strange", save_backward=False)
    PrecisionDebugger.step()
    assert entries(tmp_path)["strange.0.debug"][1]["Max"] == 1.0
