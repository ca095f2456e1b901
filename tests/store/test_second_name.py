"""A file's data under a second name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tensorprobe.store.second_name import give_second_name


def test_the_data_are_there_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    (tmp_path / "b").write_bytes(b"older")
    give_second_name(tmp_path / "a", tmp_path / "b")
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")


def test_a_link_in_its_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "b").symlink_to(tmp_path / "elsewhere")
    give_second_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert (tmp_path / "b").read_bytes() == b"data" and not (tmp_path / "b").is_symlink()


def test_where_there_can_be_no_second_name_there_is_a_copy(tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is one file system alone")
    (tmp_path / "a").write_bytes(b"data")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        give_second_name(tmp_path / "a", Path(folder, "b"))
        assert Path(folder, "b").read_bytes() == b"data" and os.listdir(folder) == ["b"]


def test_what_is_not_there_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        give_second_name(tmp_path / "a", tmp_path / "b")
    assert not list(tmp_path.iterdir())
