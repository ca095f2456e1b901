"""When a capture runs: start, stop and step, in order or not, by a block, from another file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import messages, names, small_model, steps, train_step
from torch import nn

from tensorprobe import (
    PrecisionDebugger,
    load_config,
    open_dump,
)
from tensorprobe.capture import current
from tensorprobe.errors import ConfigError

# --- start, stop, step ----------------------------------------------------------------------


def test_each_step_gets_its_own_folder(tmp_path: Path) -> None:
    model = small_model()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(3):
        debugger.start()
        train_step(model)
        debugger.stop()
        debugger.step()
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    assert debugger.captured_steps == 3
    assert names(tmp_path, 2) == names(tmp_path, 0)
    assert "Functional.linear.0.forward" in names(tmp_path)


def test_without_any_argument_it_writes_statistics_of_api_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    debugger = PrecisionDebugger()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    dump = open_dump(tmp_path / "dump_path" / "step0")
    (part,) = dump.parts
    assert (part.info.task, part.info.level, part.info.step) == ("statistics", "L1", 0)
    assert debugger.dump_path == tmp_path / "dump_path"


def test_a_script_that_changes_its_folder_has_one_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    debugger = PrecisionDebugger(dump_path="dump", task="tensor")
    for _ in range(2):
        debugger.start()
        torch.relu(torch.ones(2))
        monkeypatch.chdir(tmp_path / "elsewhere")
        torch.tanh(torch.ones(2))
        debugger.step()
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    assert steps(tmp_path / "elsewhere") == []
    for part in open_dump(tmp_path / "dump").parts:
        assert "Torch.tanh.0.forward" in part.names and not part.gaps


def test_what_happens_between_stop_and_start_is_not_seen(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    torch.sigmoid(torch.ones(2))
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    called = names(tmp_path)
    assert "Torch.relu.1.forward" in called
    assert not any("sigmoid" in name for name in called)


def test_only_wanted_steps_are_captured(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, step=[1, "3-4"])
    for _ in range(7):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert steps(tmp_path) == ["step1", "step3", "step4"]


def test_nothing_is_watched_in_a_step_that_is_not_wanted(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, step=[0])
    debugger.step()
    debugger.start()
    assert torch._C._len_torch_function_stack() == 0
    debugger.stop()


def test_an_unwanted_rank_is_not_captured(tmp_path: Path) -> None:
    config = load_config(dump_path=tmp_path, rank=[1])
    debugger = PrecisionDebugger.from_config(config)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    assert steps(tmp_path) == []


def test_steps_count_from_the_number_that_was_set(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, step=[10])
    debugger.set_init_step(9)
    for _ in range(3):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.step()
    assert steps(tmp_path) == ["step10"]


def test_a_step_that_is_none_is_refused(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    with pytest.raises(ConfigError, match=r"^set_init_step: -1 is no step, wanted a number from 0"):
        debugger.set_init_step(-1)
    with pytest.raises(ConfigError, match=r"^set_init_step: '3' is no step"):
        debugger.set_init_step("3")


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": "nowhere"}))
    debugger = PrecisionDebugger(file, "statistics", tmp_path / "dump", "L1", None, [0])
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    (part,) = open_dump(tmp_path / "dump").parts
    assert (part.info.task, part.info.level) == ("statistics", "L1")


def test_a_second_run_replaces_the_dump(tmp_path: Path) -> None:
    for function in (torch.relu, torch.sigmoid):
        debugger = PrecisionDebugger(dump_path=tmp_path)
        debugger.start()
        function(torch.ones(2))
        debugger.step()
    assert "Torch.sigmoid.0.forward" in names(tmp_path)
    assert "Torch.relu.0.forward" not in names(tmp_path)


# --- misuse -----------------------------------------------------------------------------------


def test_starting_twice_is_told_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    assert torch._C._len_torch_function_stack() == 0
    assert messages(caplog) == [
        "start() came twice without a stop() between; the second is ignored"
    ]


def test_stopping_without_a_start_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(3):
        debugger.stop()
    assert messages(caplog) == ["stop() came without a start(); there is nothing to stop"]


def test_a_step_inside_a_backward_pass_is_told_and_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(2):
        debugger.start()
        x = torch.ones(2, requires_grad=True)
        y = torch.relu(x)
        y.register_hook(lambda gradient: debugger.step())
        y.sum().backward()
        debugger.stop()
    debugger.close()
    assert messages(caplog) == [
        "step() came inside a backward pass; the step ends with the next call after that pass; "
        "call step() after loss.backward()"
    ]
    assert steps(tmp_path) == ["step0", "step1"]
    assert "Torch.relu.0.backward" in names(tmp_path, 0)
    assert "Torch.relu.0.backward" in names(tmp_path, 1)


def test_the_first_step_is_not_set_during_a_capture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    debugger.set_init_step(5)
    debugger.step()
    assert steps(tmp_path) == ["step0"]
    assert messages(caplog) == [
        "set_init_step() came between start() and stop() and is ignored; call it before the "
        "training loop"
    ]


def test_another_thread_cannot_stop_a_capture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    for method in (debugger.stop, debugger.step):
        thread = threading.Thread(target=method)
        thread.start()
        thread.join()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert "Torch.relu.0.forward" in names(tmp_path)
    assert messages(caplog) == [
        "stop() is ignored: it came from another thread than start()",
        "step() is ignored: it came from another thread than start()",
    ]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("text", "a str"),
        ([small_model(), 3], "a list with a int in it"),
        (nn.Linear, "a type"),
    ],
)
def test_a_model_that_is_none_is_refused(tmp_path: Path, model: object, found: str) -> None:
    text = f"^the model is {found}, wanted an nn.Module or a list of them$"
    with pytest.raises(ConfigError, match=text):
        PrecisionDebugger(dump_path=tmp_path, model=model)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    with pytest.raises(ConfigError, match=text):
        debugger.start(model)


class Stubborn(nn.Linear):
    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not now")


def test_trouble_inside_the_tool_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Stubborn(2, 2)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    model(torch.ones(2)).sum().backward()
    debugger.stop()
    debugger.step()
    assert messages(caplog)[0] == (
        "start() met trouble of its own (RuntimeError: not now); the run goes on, the capture may "
        "miss something"
    )
    assert not torch.nn.modules.module._global_forward_hooks


def test_the_task_of_the_precheck_is_refused(tmp_path: Path) -> None:
    rest = (
        " is 'run_ut', which captures nothing; it is for the pre-check, `tensorprobe precheck`; to "
        "capture a run, give one of 'statistics', 'tensor', 'overflow_check', 'structure'"
    )
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(dump_path=tmp_path, task="run_ut")
    assert str(caught.value) == f"argument task{rest}"
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"task": "run_ut"}))
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(file)
    assert str(caught.value) == f"{file}: task{rest}"


def test_fields_without_effect_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"async_dump": True}))
    PrecisionDebugger(file, dump_path=tmp_path / "dump")
    (message,) = messages(caplog)
    assert message.endswith("async_dump has no effect: the capture never waits for the device")


# --- the class form and several debuggers ----------------------------------------------------


def test_the_class_means_the_current_debugger(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path)
    PrecisionDebugger.start()
    torch.relu(torch.ones(2))
    PrecisionDebugger.save(torch.ones(1), "one")
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert "Torch.relu.0.forward" in names(tmp_path)
    assert names(tmp_path, file="debug.json") == ["one.0.debug", "one_grad.0.debug"]


def test_the_class_form_without_a_debugger_is_an_error() -> None:
    current._current = None
    text = r"^there is no debugger yet; make a PrecisionDebugger\(…\) before .*\.start\(\)$"
    with pytest.raises(ConfigError, match=text):
        PrecisionDebugger.start()


def test_a_second_debugger_finishes_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = PrecisionDebugger(dump_path=tmp_path / "a")
    first.start()
    torch.relu(torch.ones(2))
    second = PrecisionDebugger(dump_path=tmp_path / "b")
    assert "Torch.relu.0.forward" in names(tmp_path / "a")
    assert torch._C._len_torch_function_stack() == 0
    first.start()
    PrecisionDebugger.start()
    torch.sigmoid(torch.ones(2))
    second.step()
    assert "Torch.sigmoid.0.forward" in names(tmp_path / "b")
    assert messages(caplog) == [
        "start() is ignored: this debugger is closed, or a newer one replaced it"
    ]


# --- the context manager ---------------------------------------------------------------------


def test_a_block_is_one_step(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(2):
        with debugger:
            torch.relu(torch.ones(2))
    assert steps(tmp_path) == ["step0", "step1"]


def test_steps_follow_each_other_in_a_block_and_none_is_empty(tmp_path: Path) -> None:
    with PrecisionDebugger(dump_path=tmp_path) as debugger:
        for _ in range(3):
            torch.relu(torch.ones(2))
            debugger.step()
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    assert torch._C._len_torch_function_stack() == 0


def test_an_exception_in_a_block_leaves_a_whole_dump(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), PrecisionDebugger(dump_path=tmp_path):
        torch.relu(torch.ones(2))
        raise ValueError("mine")
    assert "Torch.relu.0.forward" in names(tmp_path)


# --- models -----------------------------------------------------------------------------------


def test_models_in_a_list_carry_their_index(tmp_path: Path) -> None:
    models = [small_model(), small_model()]
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(models)
    for model in models:
        train_step(model)
    debugger.step()
    called = names(tmp_path)
    assert "Module.0.2.Linear.forward.0" in called
    assert "Module.1.2.Linear.backward.0" in called


def test_a_model_given_to_the_constructor_names_modules(tmp_path: Path) -> None:
    model = nn.ModuleDict({"inner": small_model()})
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", model=model)
    debugger.start()
    train_step(model["inner"])
    debugger.step()
    assert "Module.inner.0.Linear.forward.0" in names(tmp_path)
