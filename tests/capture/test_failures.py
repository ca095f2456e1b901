"""A record that cannot be made costs itself: the run goes on, and the dump names it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import BOTH_WAYS, debugger_of_modules, messages, names
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.gradients import GradientWatcher
from tensorprobe.capture.recorder import Recorder


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


@BOTH_WAYS
def test_a_call_that_cannot_be_recorded_costs_none_around_it(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    model = Nested()
    with debugger_of_modules(tmp_path, listed, model):
        model(torch.ones(2, 3)).sum().backward()
    (part,) = open_dump(tmp_path / "dump").parts
    forward = [name for name in part.names if ".forward." in name]
    assert forward == ["Module.inside.inner.Linear.forward.0", "Module.Nested.forward.0"]
    assert "Module.Nested.backward.0" in part.names


def test_a_folder_that_cannot_be_made_is_told_once_and_no_step_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    debugger = PrecisionDebugger(dump_path=tmp_path / "file")
    for _ in range(4):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.step()
    assert debugger.captured_steps == 0
    assert messages(caplog) == [
        f"no dump can be written into {tmp_path / 'file'}: Not a directory; the run goes on "
        "without one; choose another dump_path"
    ]
    (tmp_path / "file").unlink()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    assert debugger.captured_steps == 1 and names(tmp_path / "file", step=4)


class ReturnsUnreadable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, rows: Tensor) -> list[object]:
        return [self.linear(rows), unreadable()]


@BOTH_WAYS
def test_a_module_without_a_record_has_its_place(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = ReturnsUnreadable()
    with debugger_of_modules(tmp_path, listed, model):
        model(torch.ones(2, 3))
    (construct,) = tmp_path.rglob("construct.json")
    places = json.loads(construct.read_text())
    inside = places["Module.linear.Linear.forward.0"]
    assert (inside[0] if isinstance(inside, list) else inside) in places


def test_an_interrupt_is_no_failure_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    monkeypatch.setattr(GradientWatcher, "note_place", interrupt)
    debugger.start(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 3))
    monkeypatch.undo()
    debugger.stop()


class Timeout(Exception):  # noqa: N818 - as people call it
    """What a user's own handler raises."""


class Late(tuple[Tensor, ...]):
    """A batch during whose description a signal comes."""

    @property
    def _fields(self) -> tuple[str, ...]:
        signal.raise_signal(signal.SIGALRM)
        return ("rows",)


@pytest.fixture(params=[Timeout, TimeoutError])
def raised(request: pytest.FixtureRequest) -> Iterator[type[Exception]]:
    """What the handler of SIGALRM raises."""

    def raise_it(*_: object) -> None:
        raise request.param("the time is over")

    before = signal.signal(signal.SIGALRM, raise_it)
    yield request.param
    assert signal.getsignal(signal.SIGALRM) is raise_it
    signal.signal(signal.SIGALRM, before)


@BOTH_WAYS
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_what_a_handler_raises_reaches_the_program(
    tmp_path: Path,
    listed: tuple[str, ...],
    level: str,
    raised: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": level, "statistics": {"list": listed}}))
    model, batch = Model(), Late((torch.ones(2, 3),))
    with PrecisionDebugger(config, dump_path=tmp_path / "dump", model=model):
        with pytest.raises(raised, match="the time is over"):
            model(batch) if level == "L0" else torch.cat(batch)
        torch.relu(torch.ones(1)) if level == "L1" else nn.ReLU()(torch.ones(1))
    dump = open_dump(tmp_path / "dump")
    assert not dump.gaps and not caplog.messages
    assert [call.name for call in dump][-1].endswith(("ReLU.forward.0", "relu.0.forward"))


def test_what_a_handler_raises_at_a_stop_reaches_the_program(
    tmp_path: Path, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(model)
    model(torch.ones(2, 3))
    write_ready = Recorder._write_ready

    def interrupted(recorder: Recorder) -> None:
        signal.raise_signal(signal.SIGALRM)
        write_ready(recorder)

    monkeypatch.setattr(Recorder, "_write_ready", interrupted)
    with pytest.raises(raised, match="the time is over"):
        debugger.stop()
    monkeypatch.undo()
    debugger.step()
    assert [call.name for call in open_dump(tmp_path)] == ["Module.Linear.forward.0"]


def test_a_handler_that_stops_while_records_are_written_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: debugger.stop())
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(40)))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    is_ready, asked = Recorder._is_ready, []

    def stop_at_the_twentieth(recorder: Recorder, record: Any) -> bool:
        asked.append(record)
        if len(asked) == 20:
            signal.raise_signal(signal.SIGUSR1)
        return is_ready(recorder, record)

    monkeypatch.setattr(Recorder, "_is_ready", stop_at_the_twentieth)
    debugger.start(model)
    model(torch.ones(2, 3))
    signal.signal(signal.SIGUSR1, before)
    debugger.step()
    dump = open_dump(tmp_path)
    assert len(asked) >= 20 and not dump.gaps
    # Of those that came after it nothing is recorded.
    names = [call.name for call in dump]
    assert 20 <= len(names) < 40
    assert names == [f"Module.{n}.Linear.forward.0" for n in range(len(names))]
