"""A record that cannot be made costs itself: the run goes on, and the dump names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger


class Unreadable(tuple[Tensor]):
    """A batch that raises when anybody asks what is in it."""

    @property
    def _fields(self) -> tuple[str, ...]:
        raise OSError("the shard is gone")


def unreadable() -> Unreadable:
    return Unreadable((torch.ones(2, 3),))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, batch: Unreadable) -> Tensor:
        result: Tensor = self.inner(batch[0])
        return result


def test_a_failed_record_is_told_once_and_listed_in_the_dump(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    for _ in range(2):
        model(unreadable()).sum().backward()
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
        model(unreadable()).sum().backward()
        debugger.stop()
        debugger.step()
    told = [r.getMessage() for r in caplog.records if "could not be recorded" in r.getMessage()]
    assert len(told) == 3
    assert [message.endswith("is told no more") for message in told] == [False, False, True]
    assert all("the shard is gone" in gap.problem for gap in open_dump(tmp_path).gaps)
    assert len(open_dump(tmp_path).gaps) >= 6


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = Model()

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.inside(unreadable()) + rows
        return result


@pytest.mark.parametrize("listed", [(), ("name-regex(.*)",)])
def test_a_call_that_cannot_be_recorded_costs_none_around_it(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": "L0", "statistics": {"list": listed}}))
    model = Nested()
    with PrecisionDebugger(config, dump_path=tmp_path / "dump") as debugger:
        debugger.start(model)
        model(torch.ones(2, 3)).sum().backward()
    (part,) = open_dump(tmp_path / "dump").parts
    forward = [name for name in part.names if ".forward." in name]
    assert forward == ["Module.inside.inner.Linear.forward.0", "Module.Nested.forward.0"]
    assert "Module.Nested.backward.0" in part.names
