"""A record that cannot be made costs itself: the run goes on, and the dump names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger


class Unreadable:
    """A batch that raises when anybody asks what it is."""

    def __getitem__(self, key: str) -> Tensor:
        return torch.ones(2, 3)

    @property
    def __class__(self) -> Any:
        raise OSError("the shard is gone")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, batch: Any) -> Tensor:
        result: Tensor = self.inner(batch["x"])
        return result


def test_a_failed_record_is_told_once_and_listed_in_the_dump(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    for _ in range(2):
        model(Unreadable()).sum().backward()
    debugger.stop()
    debugger.step()
    told = [r.getMessage() for r in caplog.records if "could not be recorded" in r.getMessage()]
    assert len(told) == 1 and "OSError: the shard is gone" in told[0]
    dump = open_dump(tmp_path)
    assert sum("the shard is gone" in gap.problem for gap in dump.gaps) >= 1
    assert "the shard is gone" in (tmp_path / "step0/rank/dump_error_info.log").read_text()
    assert "Module.inner.Linear.forward.1" in [call.name for call in dump]


def test_what_fails_in_every_step_is_told_of_a_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    for _ in range(6):
        debugger.start(model)
        model(Unreadable()).sum().backward()
        debugger.stop()
        debugger.step()
    told = [r.getMessage() for r in caplog.records if "could not be recorded" in r.getMessage()]
    assert len(told) == 3
    assert [message.endswith("is told no more") for message in told] == [False, False, True]
    assert all("the shard is gone" in gap.problem for gap in open_dump(tmp_path).gaps)
    assert len(open_dump(tmp_path).gaps) >= 6
