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
from tensorprobe.compiled import load_compiled

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


def records(folder: Path, form: str, listed: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Capture every case in a step of its own; yields each call with everything of it."""
    config = folder.with_suffix(".json")
    block = {"list": listed}
    config.write_text(json.dumps({"task": "statistics", "level": "L1", "statistics": block}))
    debugger = PrecisionDebugger(config, dump_path=folder)
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


@pytest.mark.parametrize("form", ["leaves", "nodes", "views"])
def test_every_kind_of_call_is_recorded_as_by_python(form: str, tmp_path: Path) -> None:
    compiled = list(records(tmp_path / "compiled", form, ()))
    # A list goes through Python, also one that names every call.
    plain = list(records(tmp_path / "plain", form, ("name-regex(.*)",)))
    assert len(compiled) > 3 * len(CASES)
    assert [name for name, _ in compiled] == [name for name, _ in plain]
    for (name, call), (_, wanted) in zip(compiled, plain, strict=True):
        assert call == wanted, name


def records_of_model(folder: Path, case: models.Case, listed: tuple[str, ...]) -> list[Any]:
    """Train a model for three steps at level mix; returns each call with everything of it."""
    config = folder.with_suffix(".json")
    block = {"list": listed}
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "statistics": block}))
    before = torch.get_num_threads()
    debugger = PrecisionDebugger(config, dump_path=folder)
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


@pytest.mark.parametrize("name", ["cnn", "gpt", "gpt recomputed", "llama-like", "moe", "unet"])
def test_a_model_is_recorded_as_by_python(name: str, tmp_path: Path) -> None:
    case = models.CASES[name]
    compiled = records_of_model(tmp_path / "compiled", case, ())
    plain = records_of_model(tmp_path / "plain", case, ("name-regex(.*)",))
    assert len(compiled) > 100
    assert [call[:2] for call in compiled] == [call[:2] for call in plain]
    for call, wanted in zip(compiled, plain, strict=True):
        assert call == wanted
