"""What other people's programs do with a debugger beyond `start`, `stop` and `step`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import messages, names, small_model, train_step
from torch import nn

from tensorprobe import PrecisionDebugger, open_dump, save
from tensorprobe.capture.token_range import TokenRange
from tensorprobe.errors import ConfigError

RELU = "Torch.relu.0.forward"
LINEAR = "Module.0.Linear.forward.0"
ONES = torch.ones(2)
ROW = torch.ones(1, 4)


def relu() -> None:
    torch.relu(ONES)


# --- a stage of the training in each folder, as verl has it ----------------------------------


class StagedProfiler:
    """What verl's profiler asks of a debugger: a folder for each stage, behind two checks."""

    def __init__(self, data_dir: Path, config_path: Path) -> None:
        self.data_dir = data_dir
        self.config_path = config_path
        self.debugger: Any = None

    def run(self, step: int, stage: str, model: nn.Module, *, ends_step: bool) -> None:
        folder = os.path.join(self.data_dir, f"step_{step}", stage)
        os.makedirs(folder, exist_ok=True)
        if self.debugger is None:
            self.debugger = PrecisionDebugger(config_path=str(self.config_path), dump_path=folder)
        debugger = self.debugger
        if hasattr(debugger, "service") and hasattr(debugger.service, "config"):
            debugger.service.config.dump_path = folder
        debugger.start(model)
        train_step(model)
        debugger.stop()
        if ends_step and hasattr(debugger, "step"):
            debugger.step()


def test_each_stage_of_a_step_has_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "step": []}))
    profiler = StagedProfiler(tmp_path / "data", config)
    model = small_model()
    for step in range(2):
        profiler.run(step, "actor_compute_log_prob", model, ends_step=False)
        profiler.run(step, "actor_update", model, ends_step=True)
    for step in range(2):
        for stage in ("actor_compute_log_prob", "actor_update"):
            dump = open_dump(tmp_path / "data" / f"step_{step}" / stage)
            (part,) = dump.parts
            assert part.info.step == step and not part.gaps
            # Calls count on through the step, as those of msprobe do.
            number = int(stage == "actor_update")
            assert f"Module.0.Linear.forward.{number}" in part.names
            assert f"Functional.linear.{2 * number}.backward" in part.names
            assert f"Module.0.Linear.forward.{1 - number}" not in part.names
    assert not messages(caplog)


def test_a_reset_between_stages_counts_from_0_again(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="tensor", level="L0", step=[0], dump_path=tmp_path / "0")
    model = small_model()
    prefix = debugger.config.dump_path
    for stage in ("generate", "update"):
        debugger.service.config.dump_path = os.path.join(prefix, stage)
        # Below it the next stage has its folder, too.
        assert debugger.config.dump_path == prefix
        debugger.start(model=model)
        train_step(model)
        debugger.stop()
        debugger.service._reset_status() if stage == "generate" else debugger.step()
    assert names(tmp_path / "0/generate") == names(tmp_path / "0/update")
    assert LINEAR in names(tmp_path / "0/update")
    assert not (tmp_path / "0/step0").exists()
    (part,) = open_dump(tmp_path / "0/update").parts
    assert not part.gaps


def test_a_reset_in_one_folder_replaces_what_the_step_has_so_far(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    relu()
    torch.tanh(ONES)
    debugger.stop()
    debugger.service.reset_status()
    debugger.start()
    relu()
    debugger.stop()
    debugger.step()
    assert names(tmp_path) == [RELU]


def test_a_reset_inside_a_capture_begins_it_anew(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    relu()
    PrecisionDebugger.reset_status()
    torch.tanh(ONES)
    debugger.step()
    assert names(tmp_path) == ["Torch.tanh.0.forward"]


def test_a_path_that_is_set_inside_a_capture_holds_from_the_next_start(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "a")
    debugger.start()
    debugger.service.config.dump_path = tmp_path / "b"
    relu()
    debugger.stop()
    debugger.start()
    relu()
    debugger.stop()
    debugger.step()
    assert names(tmp_path / "a") == [RELU]
    assert names(tmp_path / "b") == ["Torch.relu.1.forward"]
    debugger.start()
    relu()
    debugger.step()
    assert names(tmp_path / "b", 1) == [RELU]


def test_saved_values_follow_the_path_too(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "a", level="debug")
    save(ONES, "x")
    debugger.service.config.dump_path = tmp_path / "b"
    save(ONES, "y")
    debugger.step()
    assert names(tmp_path / "a", file="debug.json")[:1] == ["x.0.debug"]
    assert names(tmp_path / "b", file="debug.json")[:1] == ["y.0.debug"]


def test_the_configuration_is_read_and_checked_field_by_field(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", step=[0, "4-5"])
    for config in (debugger.config, debugger.service.config):
        assert config.dump_path == str(tmp_path) and config.level == "mix"
        assert max(config.step) == 5 and config.rank == [] and config.task == "statistics"
        assert "level" in dir(config) and not hasattr(config, "nonsense")
    for config in (debugger.config, debugger.service.config):
        with pytest.raises(ConfigError, match=r"^dump_path is 3, wanted a path$"):
            config.dump_path = 3
    with pytest.raises(ConfigError, match="dump_pth is no field that can be changed; did you mean"):
        debugger.service.config.dump_pth = "x"
    assert debugger.config.dump_path == str(tmp_path)
    debugger.config.level = "L0"
    assert debugger.service.config.level == debugger.config.level == "L0"
    debugger.config.list = ["Linear"]
    model = small_model()
    debugger.start(model)
    train_step(model)
    debugger.step()
    assert LINEAR in names(tmp_path) and not any("Functional" in name for name in names(tmp_path))


def test_what_is_set_up_once_cannot_be_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.config.skip_apis = ["Torch.relu"]
    assert messages(caplog) == [
        "skip_apis cannot change while a run goes on; make a new debugger for it"
    ]
    debugger.start()
    relu()
    debugger.step()
    assert names(tmp_path) == [RELU]


def test_the_step_that_was_started_last_can_be_asked_for(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    assert debugger.service.first_start and debugger.service.current_iter == 0
    for step in range(2):
        # Some programs set it for a model that is new; it is found anyway.
        debugger.service.first_start = True
        debugger.start(small_model())
        debugger.stop()
        debugger.step()
        assert debugger.service.current_iter == step and not debugger.service.first_start


# --- dump_enable, as vllm-ascend switches it -------------------------------------------------


class Switch:
    """What vllm-ascend does to the file: a new one in its place, and at once the question."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path = path
        self.fields = fields
        path.write_text(json.dumps(fields))

    def set(self, debugger: Any, is_on: bool) -> None:
        self.fields["dump_enable"] = is_on
        temporary = self.path.with_name("config.json.tmp")
        temporary.write_text(json.dumps(self.fields, indent=2))
        os.replace(temporary, self.path)
        reload = getattr(debugger, "_maybe_reload_config", None)
        assert callable(reload)
        assert reload(force=True)


def one_step(debugger: PrecisionDebugger) -> None:
    debugger.start()
    relu()
    debugger.stop()
    debugger.step()


def test_a_run_is_switched_on_and_off_by_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = tmp_path / "dump"
    switch = Switch(tmp_path / "config.json", dump_path=str(dump), level="L1", dump_enable=False)
    debugger = PrecisionDebugger(str(switch.path))
    one_step(debugger)
    assert not dump.exists()
    assert messages(caplog) == [
        f"{switch.path}: dump_enable is false: nothing is captured until it is true"
    ]
    switch.set(debugger, True)
    one_step(debugger)
    switch.set(debugger, False)
    one_step(debugger)
    assert torch._C._len_torch_function_stack() == 0
    # Steps are counted all the time.
    assert os.listdir(dump) == ["step1"]
    assert names(dump, 1) == [RELU]
    assert len(messages(caplog)) == 1


def test_the_file_is_read_again_by_itself(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    file = tmp_path / "config.json"
    fields = {"dump_path": str(dump), "dump_enable": True}
    file.write_text(json.dumps(fields))
    debugger = PrecisionDebugger(file)
    one_step(debugger)
    # Another process switches it off while a step is captured, which is kept.
    debugger.start()
    relu()
    file.write_text(json.dumps({**fields, "dump_enable": False}))
    debugger.stop()
    debugger.step()
    one_step(debugger)
    # Whoever deletes the field leaves it as it was; other fields count, too.
    file.write_text(json.dumps({"dump_path": str(dump), "level": "L0"}))
    one_step(debugger)
    file.write_text(json.dumps({**fields, "dump_path": str(tmp_path / "other")}))
    one_step(debugger)
    assert sorted(os.listdir(dump)) == ["step0", "step1"]
    assert os.listdir(tmp_path / "other") == ["step4"]


def test_what_is_switched_off_inside_a_capture_is_off_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = Switch(tmp_path / "c.json", dump_path=str(tmp_path / "dump"), dump_enable=True)
    debugger = PrecisionDebugger(switch.path)
    debugger.start()
    relu()
    switch.set(debugger, False)
    relu()
    save(ONES, "unseen")
    debugger.stop()
    debugger.step()
    assert names(tmp_path / "dump") == [RELU]
    assert not messages(caplog)


def test_a_file_that_cannot_be_used_switches_off_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dump = tmp_path / "dump"
    file = tmp_path / "config.json"
    good = json.dumps({"dump_path": str(dump), "dump_enable": True})
    file.write_text(good)
    debugger = PrecisionDebugger(file)
    file.write_text(good[:-5])
    one_step(debugger)
    assert not dump.exists()
    told = messages(caplog)
    assert len(told) == 2 and str(file) in told[0]
    assert told[0].endswith("; nothing is captured until the file can be used again")
    file.write_text(good)
    one_step(debugger)
    assert os.listdir(dump) == ["step1"]


def test_a_file_without_the_field_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"dump_path": str(tmp_path / "dump")}))
    debugger = PrecisionDebugger(file)
    # As of somebody who prepares the next run while this one goes on.
    for text in ("{", json.dumps({"dump_path": str(tmp_path / "next")})):
        file.write_text(text)
        assert not debugger._maybe_reload_config(force=True)
        one_step(debugger)
    assert sorted(os.listdir(tmp_path / "dump")) == ["step0", "step1"]
    assert not (tmp_path / "next").exists() and not messages(caplog)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_field_that_the_file_gets_later_counts(tmp_path: Path, is_asked: bool) -> None:
    dump = tmp_path / "dump"
    switch = Switch(tmp_path / "config.json", dump_path=str(dump), level="L1")
    debugger = PrecisionDebugger(switch.path)
    one_step(debugger)
    for is_on in (False, True):
        if is_asked:
            switch.set(debugger, is_on)
        else:
            switch.path.write_text(json.dumps({**switch.fields, "dump_enable": is_on}))
        one_step(debugger)
    assert sorted(os.listdir(dump)) == ["step0", "step2"]


def test_a_file_is_read_where_its_clock_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    text = json.dumps({"dump_path": str(tmp_path / "dump"), "dump_enable": True})
    file.write_text(text)
    debugger = PrecisionDebugger(file)
    assert not debugger._maybe_reload_config(force=True)
    before = os.stat(file)
    # As long as before, in the same file, at the same time.
    file.write_text(text.replace(" true", "false"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not debugger._maybe_reload_config()
    assert debugger._maybe_reload_config(force=True)
    one_step(debugger)
    assert not (tmp_path / "dump").exists()


def test_without_a_file_the_switch_is_an_argument(tmp_path: Path) -> None:
    from tensorprobe import load_config

    off = load_config(dump_path=tmp_path / "off", dump_enable=False)
    one_step(PrecisionDebugger.from_config(off))
    assert not (tmp_path / "off").exists()


# --- tokens of an inference ------------------------------------------------------------------


def generate(model: nn.Module, tokens: int) -> None:
    for _ in range(tokens):
        model(ROW)
        relu()


def test_a_range_of_tokens_is_captured(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model=model, token_range=[1, 2])
    relu()
    generate(model, 4)
    debugger.stop()
    debugger.start(model=[model], token_range=(0, 0))
    generate(model, 2)
    debugger.step()
    found = names(tmp_path)
    assert sum(name.startswith("Module.Sequential.") for name in found) == 3
    assert sum(name.startswith("Functional.linear") for name in found) == 3
    assert sum(name.startswith("Torch.relu") for name in found) == 3
    assert sum(".Linear.forward" in name for name in found) == 3
    # Nothing of it is left behind.
    assert not torch.nn.modules.module._global_forward_pre_hooks
    debugger.start(model)
    generate(model, 1)
    debugger.step()
    assert "Functional.linear.0.forward" in names(tmp_path, 1)


@pytest.mark.parametrize("wrong", [[2, 1], [0], "01", [0, 1.0], [-1, 0], 3])
def test_a_range_of_tokens_that_is_none_is_refused(wrong: Any, tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    with pytest.raises(ConfigError, match="token_range counts the calls of a model"):
        debugger.start(token_range=[0, 0])
    with pytest.raises(ConfigError, match=r"token_range is .*, wanted the first and the last"):
        debugger.start(nn.Linear(1, 1), token_range=wrong)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_the_rank_may_be_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start(rank_id=3, scheduled_tokens={"request": 1})
    relu()
    debugger.step()
    assert os.listdir(tmp_path / "step0") == ["rank3"]
    assert messages(caplog) == ["start: scheduled_tokens has no effect: whole batches are recorded"]
    with pytest.raises(ConfigError, match=r"^start: rank_id is '3', wanted a number from 0 on$"):
        debugger.start(rank_id="3")  # type: ignore[arg-type]


def test_a_range_counts_from_its_own_opening() -> None:
    held: list[bool] = []
    model = nn.Linear(1, 1)
    tokens = TokenRange(model, [0, 0], held.append)
    tokens.open()
    model(ONES[:1])
    model(ONES[:1])
    tokens.close()
    assert held == [True, False, True, False]
