"""A writer that takes its folder only when there is something to write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import CallRecord, DumpInfo, ScalarValue
from tensorprobe.store import DumpWriter, TensorData, open_dump

NUMBERS = TensorData(DTYPES["torch.float32"], np.arange(6, dtype=np.float32))
CALL = CallRecord("Torch.a.0.forward")


def late(folder: Path, info: DumpInfo | None = None) -> DumpWriter:
    return DumpWriter(folder, info or DumpInfo(level="mix"), opens_late=True)


def test_nothing_is_there_before_the_first_record(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    writer = late(folder)
    assert writer.is_empty and not list(tmp_path.iterdir())
    assert writer.write(CALL)
    assert (folder / "dump.json.part").exists()
    writer.close()
    assert [call.name for call in open_dump(folder)] == [CALL.name]


def test_what_closes_without_a_record_is_a_dump(tmp_path: Path) -> None:
    late(tmp_path / "rank").close()
    assert list(open_dump(tmp_path / "rank")) == []


def test_what_is_discarded_was_never_there(tmp_path: Path) -> None:
    writer = late(tmp_path / "rank")
    writer.discard()
    assert not writer.write(CALL)
    writer.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [1, 100])
def test_places_wait_for_the_folder(tmp_path: Path, count: int) -> None:
    writer = late(tmp_path)
    for number in range(count):
        writer.place(f"Module.a.Linear.forward.{number}", None)
    writer.close()
    assert len(json.loads((tmp_path / "construct.json").read_text())) == count


def test_a_problem_is_listed(tmp_path: Path) -> None:
    writer = late(tmp_path / "rank")
    writer.note("something was lost")
    assert "something was lost" in (tmp_path / "rank" / "dump_error_info.log").read_text()
    writer.close()
    assert "something was lost" in str(open_dump(tmp_path / "rank").gaps)


def test_data_go_where_the_dump_goes(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "rank", DumpInfo(task="tensor")):
        writer = late(tmp_path / "rank", DumpInfo(task="tensor"))
        assert writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS)
        writer.close()
    assert writer.folder != tmp_path / "rank"
    assert len(list((writer.folder / "dump_tensor_data").iterdir())) == 1
    assert not (tmp_path / "rank" / "dump_tensor_data").exists()


def test_saved_values_join_it(tmp_path: Path) -> None:
    writer = late(tmp_path)
    guest = writer.for_saved_values()
    assert guest.write(CallRecord("x.0.debug", saved=(ScalarValue("int", 3),)))
    writer.close()
    assert (tmp_path / "debug.json").exists() and (tmp_path / "dump.json").exists()


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told: list[str] = []
    writer = DumpWriter(
        tmp_path / "file" / "rank", DumpInfo(), on_trouble=told.append, opens_late=True
    )
    assert told == []
    for _ in range(3):
        assert not writer.write(CALL)
    writer.close()
    assert len(told) == 1 and "file" in told[0]


def test_steps_after_the_first_begin_without_the_disk(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    for step in range(3):
        debugger.start(model)
        assert (tmp_path / f"step{step}").exists() == (step == 0)
        model(torch.ones(2, 3)).sum().backward()
        debugger.stop()
        debugger.step()
        assert (tmp_path / f"step{step}" / "rank" / "dump.json").exists()
    debugger.close()
    assert len(open_dump(tmp_path).parts) == 3
