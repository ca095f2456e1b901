"""The compiled opener finds what Python finds in a file, or leaves the file to Python."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.dtypes import DTYPES
from tensorprobe.errors import TensorprobeError
from tensorprobe.store.tensor_bytes import pt_pieces, write_whole_file
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.store.zip_directory import read_directory
from tensorprobe.system.extensions import load_compiled
from tensorprobe.tensor_data import TensorData

COMPILED: Any = load_compiled("tensorprobe.store._zip_open", "open_zip")
MAP_FROM = 1 << 18

pytestmark = pytest.mark.skipif(COMPILED is None, reason="nothing was compiled")


def write_pt(path: Path, count: int) -> bytes:
    data = TensorData(DTYPES["torch.float32"], np.arange(count, dtype=np.float32))
    write_whole_file(path, pt_pieces(data))
    return path.read_bytes()


def loaded(path: Path, *, by_python: bool) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROBE_NO_KERNEL", str(int(by_python)))
        try:
            data = load_tensor(path)
        except TensorprobeError as err:
            return type(err), str(err)
        return data.dtype, data.shape, data.array.tobytes()


@pytest.mark.parametrize("count", [0, 1, 1000, 65_000, 66_000, 1_000_000])
def test_the_records_of_a_tensor_file_are_found(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.pt"
    text = write_pt(path, count)
    descriptor, size, content, records = COMPILED.open_zip(path, MAP_FROM)
    assert size == len(text)
    assert records == read_directory(text, where="a.pt")
    assert list(records) == list(read_directory(text, where="a.pt"))
    if size < MAP_FROM:
        assert (descriptor, content) == (-1, text)
    else:
        assert content is None
        assert os.pread(descriptor, 100, 0) == text[:100]
        os.close(descriptor)


@settings(max_examples=600, deadline=None)
@given(data=st.data(), is_large=st.booleans())
def test_a_damaged_file_is_the_same_with_and_without_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, is_large: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.pt"
    text = bytearray(write_pt(path, 66_000 if is_large else 20))
    edges = st.integers(0, 800) | st.integers(len(text) - 900, len(text) - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(edges)] = data.draw(st.sampled_from((0, 1, 255)) | st.integers(0, 255))
    if data.draw(st.integers(0, 9)) == 0:
        del text[data.draw(edges) :]
    path.write_bytes(text)
    assert loaded(path, by_python=False) == loaded(path, by_python=True)


def test_what_is_unusual_is_left_to_python_and_nothing_stays_open(tmp_path: Path) -> None:
    good = write_pt(tmp_path / "good.pt", 66_000)
    paths = {
        "text": b"no zip",
        "empty": b"",
        "cut": good[:-10],
        "comment": good[:-2] + b"\1\0x",
    }
    for name, content in paths.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", "x" * 1000)
    with (
        pytest.warns(UserWarning, match="Duplicate"),
        zipfile.ZipFile(tmp_path / "twice", "w") as archive,
    ):
        archive.writestr("a/data.pkl", "x")
        archive.writestr("a/data.pkl", "y" * 300_000)
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for name in (*paths, "packed", "twice", "pipe", "missing", "."):
        assert COMPILED.open_zip(tmp_path / name, MAP_FROM) is None, name
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        COMPILED.open_zip("a\0b", MAP_FROM)
