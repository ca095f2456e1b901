"""What compiled code records of a call's gradients is what the graph says to Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from gradient_runs import flat
from test_gradients import CASES
from torch.nn import functional

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.system.extensions import load_compiled

pytestmark = pytest.mark.skipif(
    load_compiled("tensorprobe.capture._calls") is None, reason="built without a C compiler"
)


def inputs_of(shapes: list[tuple[int, ...]], form: str) -> list[torch.Tensor]:
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    if form == "nodes":
        return [tensor * 1 for tensor in tensors]
    if form == "views":
        return [(torch.stack([tensor, tensor]) * 1)[0] for tensor in tensors]
    return tensors


def begin(folder: Path, task: str, level: str, *, is_compiled: bool) -> PrecisionDebugger:
    # A list goes through Python, also one that names every call.
    block = {"list": () if is_compiled else ("name-regex(.*)",)}
    config = folder.with_suffix(".json")
    config.write_text(json.dumps({"task": task, "level": level, task: block}))
    return PrecisionDebugger(config, dump_path=folder)


def files_of(folder: Path) -> tuple[dict[str, bytes], set[frozenset[str]]]:
    """Return the data by the names of their files, and which names are of one file."""
    names: dict[int, set[str]] = {}
    contents: dict[str, bytes] = {}
    for path in folder.rglob("*.pt"):
        name = str(path.relative_to(folder))
        names.setdefault(path.stat().st_ino, set()).add(name)
        contents[name] = path.read_bytes()
    return contents, set(map(frozenset, names.values()))


def records(folder: Path, form: str, task: str, *, is_compiled: bool) -> Iterator[tuple[str, Any]]:
    """Capture every case in a step of its own; yields each call with everything of it."""
    debugger = begin(folder, task, "L1", is_compiled=is_compiled)
    for name, (_, shapes, function) in sorted(CASES.items()):
        if name == "rms_norm" and not hasattr(functional, "rms_norm"):
            continue
        torch.manual_seed(1)
        tensors = inputs_of(shapes, form)
        debugger.start()
        found = [out for out in flat(function(*tensors)) if out.requires_grad]
        sum((out * torch.randn_like(out)).abs().sum() for out in found).backward()
        debugger.stop()
        debugger.step()
    debugger.close()
    for part in open_dump(folder).parts:
        for name in part.names:
            call = part.call(name)
            # Further out stands who captures, which is another line each time.
            stack = part.stack(name)[:1]
            yield name, (part.info.step, call.inputs, call.kwargs, call.outputs, stack)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("form", ["leaves", "nodes", "views"])
def test_every_kind_of_call_is_recorded_as_by_python(form: str, task: str, tmp_path: Path) -> None:
    compiled = list(records(tmp_path / "compiled", form, task, is_compiled=True))
    plain = list(records(tmp_path / "plain", form, task, is_compiled=False))
    assert len(compiled) > 3 * len(CASES)
    assert [name for name, _ in compiled] == [name for name, _ in plain]
    for (name, call), (_, wanted) in zip(compiled, plain, strict=True):
        assert call == wanted, name
    files = files_of(tmp_path / "compiled")
    assert files == files_of(tmp_path / "plain") and bool(files[0]) == (task == "tensor")


def records_of_model(folder: Path, case: models.Case, task: str, *, is_compiled: bool) -> list[Any]:
    """Train a model for three steps at level mix; returns each call with everything of it."""
    before = torch.get_num_threads()
    debugger = begin(folder, task, "mix", is_compiled=is_compiled)
    try:
        models.train(case, "fp32", debugger)
    finally:
        torch.set_num_threads(before)
        debugger.close()
    return [
        (part.info.step, name, call.inputs, call.kwargs, call.outputs, call.parameters)
        for part in open_dump(folder).parts
        for name in part.names
        for call in [part.call(name)]
    ]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("name", ["cnn", "gpt", "gpt recomputed", "llama-like", "moe", "unet"])
def test_a_model_is_recorded_as_by_python(name: str, task: str, tmp_path: Path) -> None:
    case = models.CASES[name]
    compiled = records_of_model(tmp_path / "compiled", case, task, is_compiled=True)
    plain = records_of_model(tmp_path / "plain", case, task, is_compiled=False)
    assert len(compiled) > 100
    assert [call[:2] for call in compiled] == [call[:2] for call in plain]
    for call, wanted in zip(compiled, plain, strict=True):
        assert call == wanted
    files = files_of(tmp_path / "compiled")
    assert files == files_of(tmp_path / "plain") and bool(files[0]) == (task == "tensor")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_usual_calls_are_for_compiled_code_unless_some_are_left_out(
    task: str, is_compiled: bool, tmp_path: Path
) -> None:
    with begin(tmp_path / "dump", task, "mix", is_compiled=is_compiled) as debugger:
        # Otherwise the tests above would compare Python with itself.
        assert debugger._session is not None
        assert (debugger._session.recorder.fast_recorder is not None) == is_compiled
