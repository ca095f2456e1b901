"""module_dump: one module under a name of its own, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from debugged import messages, names, small_model
from torch import nn

from tensorprobe import (
    PrecisionDebugger,
    module_dump,
    module_dump_end,
    save,
)
from tensorprobe.capture import current
from tensorprobe.errors import ConfigError


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
