"""A promised file appears whole, with all its names, or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tensorprobe.dtypes import DTYPES
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.tensor_bytes import pt_frame, pt_pieces
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.store.tensor_files import TakenNames, TensorFiles
from tensorprobe.tensor_data import TensorData

FLOAT = DTYPES["torch.float32"]
NUMBERS = TensorData(FLOAT, np.arange(3000, dtype=np.float32).reshape(30, 100))
CONTENT = NUMBERS.array.tobytes()


class Losses(list[str]):
    """Collects what is lost."""

    def __call__(self, name: str, data_name: str, err: Exception | None) -> None:
        self.append(f"{name} in {data_name}: {err}")


def promise(folder: Path, losses: Losses, name: str = "a") -> PendingFile:
    frame = pt_frame(FLOAT, NUMBERS.shape)
    return PendingFile(name, str(folder / "data"), f"{name}.pt", ".pt", frame, losses)


def arrived() -> None:
    """The bytes are there."""


def write_parts(file: PendingFile, sizes: list[int], order: list[int]) -> None:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    file.expect_parts(len(sizes))
    threads = [
        threading.Thread(
            target=file.write_part,
            args=(starts[index], CONTENT[starts[index] : starts[index] + sizes[index]]),
            kwargs={"is_last": index == len(sizes) - 1, "wait": arrived},
        )
        for index in order
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_parts_in_any_order_make_the_file_that_one_write_makes(
    tmp_path: Path, order: list[int]
) -> None:
    losses = Losses()
    file = promise(tmp_path, losses)
    assert not file.is_done and file.data_name == "a.pt"
    write_parts(file, [5000, 5000, 2000], order)
    assert file.is_done and file.data_name == "a.pt" and losses == []
    expected = b"".join(bytes(piece) for piece in pt_pieces(NUMBERS))
    assert (tmp_path / "data" / "a.pt").read_bytes() == expected
    assert os.listdir(tmp_path / "data") == ["a.pt"]


def test_a_part_that_does_not_arrive_costs_the_whole_file_once(tmp_path: Path) -> None:
    losses = Losses()
    file = promise(tmp_path, losses)
    second_name = promise(tmp_path, losses, "b")
    second_name.follow(file)

    def fail() -> None:
        raise RuntimeError("the device is gone")

    file.expect_parts(3)
    file.write_part(0, CONTENT[:4000], is_last=False, wait=arrived)
    file.write_part(4000, CONTENT[4000:8000], is_last=False, wait=fail)
    assert not file.is_done
    file.write_part(8000, CONTENT[8000:], is_last=True, wait=arrived)
    assert file.is_lost and second_name.is_lost
    assert losses == [f"{name} in {name}.pt: the device is gone" for name in "ab"]
    assert file.data_name is None
    assert os.listdir(tmp_path / "data") == []


def test_a_second_name_comes_with_the_first_before_and_after_it_is_written(tmp_path: Path) -> None:
    losses = Losses()
    file, early, late = (promise(tmp_path, losses, name) for name in "abc")
    early.follow(file)
    assert not early.is_done
    file.write(CONTENT)
    late.follow(file)
    assert [f.data_name for f in (file, early, late)] == ["a.pt", "b.pt", "c.pt"]
    paths = [tmp_path / "data" / f"{name}.pt" for name in "abc"]
    assert len({path.stat().st_ino for path in paths}) == 1
    assert (load_tensor(paths[2]).array == NUMBERS.array).all()


def test_a_file_that_cannot_be_written_is_told_and_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    losses = Losses()
    whole, in_parts = promise(tmp_path, losses), promise(tmp_path, losses, "b")
    whole.write(CONTENT)
    write_parts(in_parts, [12_000], [0])
    assert whole.is_lost and in_parts.is_lost and len(losses) == 2


def test_no_two_values_share_a_file_unless_they_are_told_to(tmp_path: Path) -> None:
    losses = Losses()
    files = TensorFiles(tmp_path, "pt", TakenNames(), losses)
    first = files.promise("a", FLOAT, NUMBERS.shape)
    assert first is not None
    assert files.promise("a", FLOAT, NUMBERS.shape) is None
    assert files.promise_link("a", first) is None
    assert losses == ["a in a.pt: None"] * 2
