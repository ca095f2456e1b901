"""Saved values beside other records in one folder, dumps that move, and dumps that are given up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tensorprobe.dtypes import dtype_named
from tensorprobe.records import CallRecord, DumpInfo, ScalarValue
from tensorprobe.store import DumpWriter, open_dump
from tensorprobe.tensor_data import TensorData

CALL = CallRecord("Torch.relu.0.forward", inputs=(ScalarValue("int", 1),))
SAVED = CallRecord("x.0.debug", saved=(ScalarValue("int", 2),))


def ones() -> TensorData:
    dtype = dtype_named("torch.float32")
    assert dtype is not None
    return TensorData(dtype, np.ones(2, np.float32))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_saved_values_stand_beside_the_records(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(step=0, task="tensor", level="L1")) as writer:
        guest = writer.for_saved_values()
        assert writer.write(CALL) and guest.write(SAVED)
    assert names(tmp_path) == ["construct.json", "debug.json", "dump.json", "stack.json"]
    assert [call.name for call in open_dump(tmp_path)] == ["x.0.debug", "Torch.relu.0.forward"]
    header = json.loads((tmp_path / "debug.json").read_text())
    assert (header["task"], header["level"]) == ("tensor", "debug")


def test_a_guest_that_is_closed_twice_or_late_does_no_harm(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, DumpInfo(level="L1"))
    guest = writer.for_saved_values()
    guest.write(SAVED)
    guest.close()
    writer.write(CALL)
    writer.close()
    guest.close()
    assert not guest.write(SAVED)
    assert len(list(open_dump(tmp_path))) == 2


def test_both_keep_their_data_apart(tmp_path: Path) -> None:
    data = ones()
    with DumpWriter(tmp_path, DumpInfo(task="tensor", level="L1")) as writer:
        guest = writer.for_saved_values()
        assert writer.save_tensor("same", data) == "same.pt"
        assert guest.save_tensor("same", data) is None
        assert guest.lost == 1


def test_calls_that_are_not_recorded_have_their_place_in_the_tree(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(level="mix")) as writer:
        writer.place("Torch.relu.0.forward", "Module.a.Block.forward.0")
        writer.write(CALL, parent="Module.a.Block.forward.0")
        writer.place("Module.a.Block.forward.0", None)
        writer.place("Module.a.Block.forward.0", None)
    assert json.loads((tmp_path / "construct.json").read_text()) == {
        "Torch.relu.0.forward": "Module.a.Block.forward.0",
        "Module.a.Block.forward.0": None,
    }


def test_a_dump_moves_to_the_folder_where_it_belongs(tmp_path: Path) -> None:
    old = tmp_path / "step0" / "rank3"
    with DumpWriter(old, DumpInfo(task="tensor", level="L1")) as writer:
        writer.write(CallRecord("Torch.old.0.forward", inputs=()))
    writer = DumpWriter(tmp_path / "step0" / "rank", DumpInfo(step=0, task="tensor", level="L1"))
    data = ones()
    writer.save_tensor("Torch.relu.0.forward.input.0", data)
    writer.write(CALL)
    writer.close(move_to=old)
    assert writer.folder == old
    assert names(tmp_path / "step0") == ["rank3"]
    assert names(old) == ["construct.json", "dump.json", "dump_tensor_data", "stack.json"]
    (part,) = open_dump(tmp_path).parts
    assert part.info.rank == 3 and [call.name for call in part] == [CALL.name]


def test_a_dump_that_cannot_move_stays_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "rank3").write_text("a file")
    writer = DumpWriter(tmp_path / "rank", DumpInfo(level="L1"), on_trouble=told.append)
    writer.write(CALL)
    writer.close(move_to=tmp_path / "rank3")
    assert [call.name for call in open_dump(tmp_path / "rank")] == [CALL.name]
    assert told == [
        f"{tmp_path / 'rank'} belongs to {tmp_path / 'rank3'} and could not be moved: File exists"
    ]


def test_an_empty_dump_can_be_given_up(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    writer = DumpWriter(folder, DumpInfo(level="L1"))
    writer.for_saved_values()
    assert writer.is_empty
    writer.discard()
    writer.close()
    assert names(tmp_path) == []


def test_a_dump_with_anything_in_it_is_not_empty(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, DumpInfo(level="L1"))
    writer.for_saved_values().write(SAVED)
    assert not writer.is_empty
    writer.close()
