"""A small run, and what a debugger leaves of it: for the tests of when and what it records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tensorprobe.capture import PrecisionDebugger

BOTH_WAYS = pytest.mark.parametrize("listed", [(), ("name-regex(.*)",)])
"""By compiled code and by Python: a list goes through Python, also one that names every call."""


def debugger_of_modules(
    folder: Path, listed: tuple[str, ...], model: nn.Module
) -> PrecisionDebugger:
    """Return what captures the modules of a model into `folder / "dump"`, as a block."""
    config = folder / "config.json"
    config.write_text(json.dumps({"level": "L0", "statistics": {"list": listed}}))
    return PrecisionDebugger(config, dump_path=folder / "dump", model=model)


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
