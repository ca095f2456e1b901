"""A run with the tool on is, bit for bit, the run that never heard of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import torch
from torch import nn

from conftest import made_once
from tensorprobe import open_dump, save
from tensorprobe.capture import PrecisionDebugger

LEVELS = ("L0", "L1", "mix", "L2")
EVERY = [(name, precision) for name in models.CASES for precision in models.PRECISIONS]
# Level mix holds what the others do, and meets every model in every precision.
AT_LEVELS = [
    (name, precision, level)
    for row, name in enumerate(models.CASES)
    for column, level in enumerate(LEVELS)
    for number, precision in enumerate(models.PRECISIONS)
    if level == "mix" or number == (row + column) % 3
]
ONE_PRECISION = [(name, models.PRECISIONS[row % 3]) for row, name in enumerate(models.CASES)]
# Reading the data itself goes other ways than reading statistics.
WITH_DATA = [
    (name, models.PRECISIONS[(row + column) % 3], kind)
    for row, name in enumerate(
        ("cnn", "lstm", "gpt recomputed reentrantly", "moe", "shared memory", "hf t5")
    )
    for column, kind in enumerate(("tensor", "md5"))
    if name in models.CASES
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_trouble(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The tool has nothing to complain about: every call could be recorded."""
    yield
    assert [r.getMessage() for r in caplog.records if r.name.startswith("tensorprobe")] == []


@pytest.fixture(scope="module")
def without_the_tool(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What comes out of a process that never imports tensorprobe; it asserts that itself."""

    def make(path: Path) -> None:
        subprocess.run(
            [sys.executable, models.__file__, os.fspath(path)],
            check=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stderr=subprocess.DEVNULL,
        )

    path = made_once(tmp_path_factory, "runs_without_the_tool.json", make)
    found: dict[str, dict[str, str]] = json.loads(path.read_text())
    return found


class Debugger(models.Watch):
    """The real debugger around each step; what it wrote is looked at and thrown away."""

    def __init__(self, folder: Path, *, level: str, kind: str = "statistics") -> None:
        config = folder / "config.json"
        task = "tensor" if kind == "tensor" else "statistics"
        summary = "md5" if kind == "md5" else "statistics"
        config.write_text(
            json.dumps(
                {
                    "task": task,
                    "level": level,
                    task: {"summary_mode": summary, "data_mode": ["all"]},
                }
            )
        )
        self._dump = folder / "dump"
        self._debugger = PrecisionDebugger(config, dump_path=self._dump)
        self.calls: list[int] = []
        self.backward_calls: list[int] = []

    def start(self, model: nn.Module) -> None:
        self._debugger.start(model)

    def stop(self) -> None:
        self._debugger.stop()

    def step(self) -> None:
        self._debugger.step()
        (part,) = open_dump(self._dump).parts
        assert not part.known_gaps
        self.calls.append(len(part))
        self.backward_calls.append(sum(".backward" in name for name in part.names))
        shutil.rmtree(self._dump)


class Saving(models.Watch):
    """At level debug, what the model was given and what it gave is saved, with gradients."""

    def __init__(self, folder: Path) -> None:
        self._dump = folder / "dump"
        self._debugger = PrecisionDebugger(dump_path=self._dump, level="debug")
        self.names: list[set[str]] = []

    def start(self, model: nn.Module) -> None:
        def save_both(_: nn.Module, args: object, named: object, out: object) -> None:
            save({"args": args, "named": named, "out": out}, "model")

        self._hook = model.register_forward_hook(save_both, with_kwargs=True)
        self._debugger.start(model)

    def stop(self) -> None:
        self._hook.remove()
        self._debugger.stop()

    def step(self) -> None:
        self._debugger.step()
        (part,) = open_dump(self._dump).parts
        assert not part.known_gaps
        self.names.append(set(part.names))
        shutil.rmtree(self._dump)


class Idle(models.Watch):
    """A debugger that is there and never started."""

    def __init__(self, folder: Path) -> None:
        self._debugger = PrecisionDebugger(dump_path=folder / "dump", level="mix")


@pytest.mark.same_without_c
def test_the_reference_run_trained_every_model(
    without_the_tool: dict[str, dict[str, str]],
) -> None:
    assert list(without_the_tool) == [f"{name}, {precision}" for name, precision in EVERY]
    for name in models.CASES:
        losses = {
            without_the_tool[f"{name}, {precision}"]["losses"] for precision in models.PRECISIONS
        }
        assert len(losses) == len(models.PRECISIONS)


@pytest.mark.same_without_c
@pytest.mark.parametrize(("name", "precision"), ONE_PRECISION)
def test_imported_and_off(
    tmp_path: Path, without_the_tool: dict[str, dict[str, str]], name: str, precision: str
) -> None:
    found = models.train(models.CASES[name], precision, Idle(tmp_path))
    assert found == without_the_tool[f"{name}, {precision}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "precision", "level"), AT_LEVELS)
def test_on_at_every_level(
    tmp_path: Path,
    without_the_tool: dict[str, dict[str, str]],
    name: str,
    precision: str,
    level: str,
) -> None:
    debugger = Debugger(tmp_path, level=level)
    found = models.train(models.CASES[name], precision, debugger)
    assert found == without_the_tool[f"{name}, {precision}"]
    assert len(debugger.calls) == models.STEPS
    assert min(debugger.calls) > 5
    assert min(debugger.backward_calls) > 2


@pytest.mark.same_without_c
@pytest.mark.parametrize(("name", "precision"), ONE_PRECISION)
def test_on_for_saved_values(
    tmp_path: Path, without_the_tool: dict[str, dict[str, str]], name: str, precision: str
) -> None:
    saving = Saving(tmp_path)
    found = models.train(models.CASES[name], precision, saving)
    assert found == without_the_tool[f"{name}, {precision}"]
    assert saving.names == [{"model.0.debug", "model_grad.0.debug"}] * models.STEPS


@pytest.mark.parametrize(("name", "precision", "kind"), WITH_DATA)
def test_on_with_data_and_checksums(
    tmp_path: Path,
    without_the_tool: dict[str, dict[str, str]],
    name: str,
    precision: str,
    kind: str,
) -> None:
    found = models.train(models.CASES[name], precision, Debugger(tmp_path, level="mix", kind=kind))
    assert found == without_the_tool[f"{name}, {precision}"]


@pytest.mark.parametrize("name", models.CASES)
def test_on_without_gradients(tmp_path: Path, name: str) -> None:
    debugger = Debugger(tmp_path, level="mix")
    assert models.predict(models.CASES[name], debugger) == models.predict(models.CASES[name])
    assert min(debugger.calls) > 5


def test_on_for_one_step_of_three(
    tmp_path: Path, without_the_tool: dict[str, dict[str, str]]
) -> None:
    class OneStep(models.Watch):
        def __init__(self) -> None:
            self.debugger = PrecisionDebugger(dump_path=tmp_path, level="mix", step=[1])

        def start(self, model: nn.Module) -> None:
            self.debugger.start(model)

        def stop(self) -> None:
            self.debugger.stop()

        def step(self) -> None:
            self.debugger.step()

    found = models.train(models.CASES["cnn"], "fp32", OneStep())
    assert found == without_the_tool["cnn, fp32"]
    assert [part.info.step for part in open_dump(tmp_path).parts] == [1]


def test_stopped_between_forward_and_backward(
    tmp_path: Path, without_the_tool: dict[str, dict[str, str]]
) -> None:
    class ForwardOnly(models.Watch):
        def __init__(self) -> None:
            self.debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")

        def start(self, model: nn.Module) -> None:
            self.debugger.start(model)
            model.register_forward_hook(lambda *_: self.debugger.stop())

        def step(self) -> None:
            self.debugger.step()

    found = models.train(models.CASES["shared memory"], "fp32", ForwardOnly())
    assert found == without_the_tool["shared memory, fp32"]
