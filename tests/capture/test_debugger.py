"""When a capture runs: start, stop and step, in order or not, by a block, from another file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tensorprobe import (
    PrecisionDebugger,
    load_config,
    module_dump,
    module_dump_end,
    open_dump,
    save,
)
from tensorprobe.capture import current
from tensorprobe.errors import ConfigError
from tensorprobe.records import TensorValue


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def train_step(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def names(path: Path, step: int = 0, file: str = "dump.json") -> list[str]:
    return list(json.loads((path / f"step{step}" / "rank" / file).read_text())["data"])


def steps(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tensorprobe"]


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
    assert str(debugger.dump_path) == "dump_path"


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


# --- module_dump ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_one_module_is_recorded_alone_under_a_name(tmp_path: Path, level: str) -> None:
    model = small_model()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start()
    x = torch.ones(3, 4)
    first = nn.functional.gelu(x)
    module_dump(model, "Mine")
    out = model(first)
    module_dump_end()
    nn.functional.gelu(out).sum().backward()
    debugger.stop()
    debugger.step()
    called = names(tmp_path)
    assert "Module.Mine.Sequential.forward.0" in called
    assert "Module.Mine.Sequential.backward.0" in called
    assert not any("Linear" in name or "linear" in name for name in called)
    if level != "L0":
        assert "Functional.gelu.1.forward" in called


def test_a_module_can_be_dumped_in_every_step_and_twice_in_one(tmp_path: Path) -> None:
    model = small_model()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    for _ in range(2):
        debugger.start()
        for _ in range(2):
            module_dump(model, "Mine")
            model(torch.ones(3, 4))
            module_dump_end()
        debugger.step()
    modules = [name for name in names(tmp_path, 1) if name.startswith("Module")]
    assert modules == ["Module.Mine.Sequential.forward.0", "Module.Mine.Sequential.forward.1"]
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_module_dump_wants_a_module_and_a_name(tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=tmp_path)
    with pytest.raises(ConfigError, match=r"^module_dump: the module is a str, wanted an nn\.Mod"):
        module_dump("model", "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^module_dump: the name is 3, wanted a text$"):
        module_dump(nn.ReLU(), 3)  # type: ignore[arg-type]


def test_module_dump_without_a_start_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PrecisionDebugger(dump_path=tmp_path)
    module_dump(nn.ReLU(), "x")
    module_dump_end()
    assert messages(caplog) == ["module_dump() came without a start(); nothing is recorded"]


def test_lines_of_the_tool_may_stay_in_a_model_without_a_debugger() -> None:
    current._current = None
    save(torch.ones(1), "x")
    module_dump(nn.ReLU(), "x")
    module_dump_end()


# --- functions of the user's own --------------------------------------------------------------


def user_module() -> ModuleType:
    module = ModuleType("my_ops")

    def fused(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return torch.sigmoid(x) * scale

    module.fused = fused  # type: ignore[attr-defined]
    return module


def test_a_function_of_the_users_own_is_recorded_as_one_call(tmp_path: Path) -> None:
    ops = user_module()
    original = ops.fused
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(ops, "fused", "MyOps")
    debugger.start()
    x = torch.ones(2, requires_grad=True)
    ops.fused(x, scale=3.0).sum().backward()
    debugger.stop()
    ops.fused(x)
    debugger.step()
    called = names(tmp_path)
    assert "MyOps.fused.0.forward" in called and "MyOps.fused.0.backward" in called
    assert not any("sigmoid" in name for name in called)
    entry = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    assert entry["MyOps.fused.0.forward"]["input_kwargs"]["scale"]["value"] == 3.0
    debugger.restore_custom_api(ops, "fused")
    assert ops.fused is original


def test_the_prefix_is_the_modules_name_by_default(tmp_path: Path) -> None:
    ops = user_module()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    PrecisionDebugger.register_custom_api(ops, "fused")
    debugger.start()
    ops.fused(torch.ones(2))
    debugger.step()
    assert "my_ops.fused.0.forward" in names(tmp_path)


class Attention:
    scale = 2.0

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    @staticmethod
    def mask(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def make(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.scale


class OwnAttention(Attention):
    pass


@pytest.mark.parametrize("home", [Attention, OwnAttention])
@pytest.mark.parametrize("name", ["attend", "mask", "make"])
def test_methods_are_recorded_without_their_object_and_restored_exactly(
    tmp_path: Path, home: type, name: str
) -> None:
    before = vars(home).get(name)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(home, name, "Own")
    debugger.start()
    getattr(home(), name)(torch.ones(2))
    debugger.step()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_text())["data"]
    (value,) = data[f"Own.{name}.0.forward"]["input_args"]
    assert value["type"] == "torch.Tensor"
    debugger.restore_custom_api(home, name)
    assert vars(home).get(name) is before


def test_a_method_of_one_object_is_recorded_and_restored(tmp_path: Path) -> None:
    attention = Attention()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(attention, "attend")
    debugger.start()
    attention.attend(torch.ones(2))
    debugger.step()
    assert "Custom.attend.0.forward" in names(tmp_path)
    debugger.restore_custom_api(attention, "attend")
    assert vars(attention) == {}


def test_a_function_of_torch_only_gets_another_name(tmp_path: Path) -> None:
    before = torch.matmul
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(torch, "matmul", "Mine")
    assert torch.matmul is before
    debugger.start()
    torch.matmul(torch.ones(2, 2), torch.ones(2, 2))
    debugger.step()
    debugger.restore_custom_api(torch, "matmul")
    debugger.start()
    torch.matmul(torch.ones(2, 2), torch.ones(2, 2))
    debugger.step()
    assert "Mine.matmul.0.forward" in names(tmp_path, 0)
    assert "Torch.matmul.0.forward" in names(tmp_path, 1)


def test_a_newer_debugger_restores_what_the_older_replaced(tmp_path: Path) -> None:
    ops = user_module()
    original = ops.fused
    PrecisionDebugger(dump_path=tmp_path / "a").register_custom_api(ops, "fused")
    assert ops.fused is not original
    PrecisionDebugger(dump_path=tmp_path / "b")
    assert ops.fused is original


def test_a_function_that_somebody_replaced_since_is_left_alone(tmp_path: Path) -> None:
    ops = user_module()
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.register_custom_api(ops, "fused")
    ours = ops.fused

    def theirs(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ours(x)
        return result

    ops.fused = theirs  # type: ignore[attr-defined]
    debugger.restore_custom_api(ops, "fused")
    assert ops.fused is theirs
    assert torch.equal(ops.fused(torch.zeros(1)), torch.ones(1))


def test_what_cannot_be_registered_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    ops = user_module()
    with pytest.raises(ConfigError, match=r"^register_custom_api: my_ops has no function 'fusde'"):
        debugger.register_custom_api(ops, "fusde")
    with pytest.raises(ConfigError, match=r"the prefix is 'Module', wanted a word such as 'MyOps'"):
        debugger.register_custom_api(ops, "fused", "Module")
    with pytest.raises(ConfigError, match=r"'Linear' of torch.nn is a class; give the class and "):
        debugger.register_custom_api(torch.nn, "Linear")
    with pytest.raises(ConfigError, match=r"'bit_length' of int cannot be replaced: "):
        debugger.register_custom_api(int, "bit_length")
    debugger.restore_custom_api(ops, "fused")
    assert messages(caplog) == [
        "restore_custom_api: 'fused' is not registered; there is nothing to undo"
    ]


def test_add_apis_names_functions_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "our_kernels.py").write_text("def swiglu(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    names_given = ["our_kernels.swiglu", "no_such_package.fused"]
    config = load_config(dump_path=tmp_path / "dump", add_apis=names_given)
    debugger = PrecisionDebugger.from_config(config)
    import our_kernels  # type: ignore[import-not-found]

    debugger.start()
    our_kernels.swiglu(torch.ones(2))
    debugger.step()
    assert "our_kernels.swiglu.0.forward" in names(tmp_path / "dump")
    assert messages(caplog) == [
        "add_apis holds 'no_such_package.fused', which cannot be recorded: No module named "
        "'no_such_package'"
    ]


# --- ranks, processes, the end ----------------------------------------------------------------


def test_the_rank_of_a_launcher_counts_before_its_group_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    assert (tmp_path / "step0/rank3/dump.json").exists()


def test_a_dump_moves_to_the_rank_that_its_process_gets_later(tmp_path: Path) -> None:
    program = (
        "import torch, torch.distributed as dist, sys\n"
        "from tensorprobe import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path=sys.argv[1], task='tensor')\n"
        "debugger.start()\n"
        "torch.relu(torch.ones(2))\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "debugger.step()\n"
        "dist.destroy_process_group()\n"
    )
    run_program(program, tmp_path)
    assert sorted(child.name for child in (tmp_path / "step0").iterdir()) == ["rank0"]
    (part,) = open_dump(tmp_path).parts
    assert part.info.rank == 0
    (call,) = [call for call in part if call.name == "Torch.relu.0.forward"]
    value = next(iter(call.leaves())).value
    assert isinstance(value, TensorValue)
    assert part.load(value).array.tolist() == [1.0, 1.0]


def test_the_end_of_the_process_finishes_the_dump(tmp_path: Path) -> None:
    program = (
        "import torch, sys\n"
        "from tensorprobe import PrecisionDebugger\n"
        "PrecisionDebugger(dump_path=sys.argv[1])\n"
        "PrecisionDebugger.start()\n"
        "torch.relu(torch.ones(2))\n"
    )
    run_program(program, tmp_path)
    assert "Torch.relu.0.forward" in names(tmp_path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_leaves_the_dump_of_its_parent_alone(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(torch.ones(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.sigmoid(torch.ones(2))
            PrecisionDebugger.stop()
            code = 0 if debugger._session is None else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    debugger.step()
    called = names(tmp_path)
    assert "Torch.relu.0.forward" in called and not any("sigmoid" in n for n in called)


def run_program(program: str, folder: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_stacks_begin_with_the_line_of_the_user(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        debugger.start(model)
        loss = model(torch.ones(1, 2)).softmax(-1).sum()
        loss.backward()
    part = open_dump(tmp_path).parts[0]
    for name in part.names:
        if ".forward" in name:
            top = part.stack(name)[0]
            assert Path(top.path).name == Path(__file__).name, (name, top)
