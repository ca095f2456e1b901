"""Nothing that is written inside a dump folder goes through a link that somebody left there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tensorprobe import PrecisionDebugger
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import CallRecord, DumpInfo, ScalarValue
from tensorprobe.store import DumpWriter, TensorData, open_dump
from tensorprobe.store.error_log import ErrorLog
from tensorprobe.system.new_file import make_anew

CALL = CallRecord("Torch.relu.0.forward", inputs=(ScalarValue("int", 1),))
DATA = TensorData(DTYPES["torch.float32"], np.ones(3, np.float32))
NAMES = ("dump.json", "stack.json", "construct.json", "debug.json")


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """What is not ours to write."""
    path = tmp_path / "treasure"
    path.write_text("gold")
    return path


def write_dump(folder: Path) -> None:
    with DumpWriter(folder, DumpInfo(task="tensor", level="mix")) as writer:
        writer.save_tensor(f"{CALL.name}.input.0", DATA)
        assert writer.write(CALL)
        guest = writer.for_saved_values()
        assert guest.write(CallRecord("x.0.debug", saved=(ScalarValue("int", 2),)))
        writer.note("something is lacking")


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}.part" for name in NAMES)])
@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_link_in_the_place_of_a_file_is_replaced(
    tmp_path: Path, treasure: Path, name: str, plant: object
) -> None:
    folder = tmp_path / "rank"
    folder.mkdir()
    assert callable(plant)
    plant(treasure, folder / name)
    write_dump(folder)
    assert treasure.read_text() == "gold"
    assert not (folder / name).is_symlink()
    assert len(list(open_dump(folder))) == 2


@pytest.mark.parametrize("name", [".tensorprobe.lock", "dump_error_info.log"])
def test_no_other_file_of_a_dump_follows_a_link(tmp_path: Path, treasure: Path, name: str) -> None:
    folder = tmp_path / "rank"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "made")
    write_dump(folder)
    assert not (tmp_path / "made").exists() and not (folder / name).is_symlink()


def test_the_hidden_list_of_losses_follows_no_link(tmp_path: Path, treasure: Path) -> None:
    (tmp_path / f".dump_error_info.log.{os.getpid()}").symlink_to(treasure)
    log = ErrorLog(tmp_path)
    log.add("something is lacking")
    log.close()
    assert treasure.read_text() == "gold"


def test_data_do_not_go_to_where_a_link_leads(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "rank", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "dump_tensor_data").symlink_to(elsewhere)
    write_dump(folder)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("link", ["step0", "step0/rank"])
def test_a_folder_that_is_a_link_is_refused_and_told(
    tmp_path: Path, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "dump" / link).parent.mkdir(parents=True)
    (tmp_path / "dump" / link).symlink_to(elsewhere)
    with PrecisionDebugger(dump_path=tmp_path / "dump"):
        pass
    place = tmp_path / "dump" / link
    assert list(elsewhere.iterdir()) == []
    assert any(f"{place} is a link" in message for message in caplog.messages)


def test_the_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "dump").symlink_to(tmp_path / "large disk")
    with PrecisionDebugger(dump_path=tmp_path / "dump", level="debug") as debugger:
        debugger.save(1, "one")
    assert (tmp_path / "large disk/step0/rank/debug.json").exists()


def test_a_file_that_is_made_anew_shares_nothing_with_what_was_there(
    tmp_path: Path, treasure: Path
) -> None:
    os.link(treasure, tmp_path / "second name")
    os.close(make_anew(tmp_path / "second name"))
    assert treasure.read_text() == "gold" and (tmp_path / "second name").read_text() == ""
