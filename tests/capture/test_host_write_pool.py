"""A pool: what is measured and written at the end of a record, and what waits for the next."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_runs import every_core
from pool_files import MEGABYTE, PoolFiles, has_compiled_pool

from tensorprobe.capture.host_write_pool import find_region
from tensorprobe.summary.statistics import StatisticsQueue
from tensorprobe.system.extensions import load_compiled

__all__ = ["every_core"]

pytestmark = pytest.mark.skipif(not has_compiled_pool(), reason="nothing is compiled here")


@pytest.fixture(params=["torch's threads", "one thread"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> PoolFiles:
    if request.param == "one thread":
        return PoolFiles(tmp_path, region=0)
    return with_threads(tmp_path)


def with_threads(folder: Path, **parts: Any) -> PoolFiles:
    if not find_region():
        pytest.skip("this torch has no OpenMP that is known here")
    torch.ones(1 << 22).add(1)
    return PoolFiles(folder, **parts)


def test_numbers_files_and_names(tmp_path: Path, files: PoolFiles) -> None:
    tensors = [torch.randn(300, 300) * number for number in range(1, 9)]
    old = files.promise("old")
    old.write(b"before")
    names = [files.promise(name) for name in ("second", "third", "of 0")]
    with files.pool as _:
        pool = files.pool
        assert pool.link(names[0], old) and pool.link(names[1], old)
        measured = []
        for number, tensor in enumerate(tensors):
            file = files.promise(f"file{number}", (b"head", b"tail"))
            pool.write(file, tensor.data_ptr(), tensor.nbytes, tensor)
            measured.append(pool.ask(tensor))
            if not number:
                assert pool.link(names[2], file)
        assert not pool.link(files.promise("lost"), files.promise("unknown"))
    files.pool.drain()
    queue = StatisticsQueue()
    assert [one.numbers for one in measured] == [queue.ask(tensor).numbers for tensor in tensors]
    for number, tensor in enumerate(tensors):
        content = b"head" + tensor.numpy().tobytes() + b"tail"
        assert (tmp_path / f"file{number}").read_bytes() == content
    assert (tmp_path / "third").samefile(tmp_path / "old")
    assert (tmp_path / "of 0").samefile(tmp_path / "file0")
    assert all(name.data_name is not None for name in names)
    assert len(list(tmp_path.iterdir())) == 12 and not files.failures


@pytest.mark.parametrize("count", [1, 1024, 65_536, 65_537, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_many_threads_find_the_numbers_that_one_finds(
    files: PoolFiles, count: int, dtype: torch.dtype
) -> None:
    tensor = (torch.randn(count) * 100).to(dtype)
    if dtype.is_floating_point and count > 3:
        tensor[::3000] = math.nan
        tensor[3] = -math.inf
        tensor[count // 2 :: 7] = 1e-38
    with files.pool:
        measured = files.pool.ask(tensor)
    assert measured.numbers is not None
    expected = StatisticsQueue().ask(tensor).numbers
    # NaN is not equal to itself.
    assert repr(measured.numbers) == repr(expected)


def test_what_cannot_be_written_says_so_and_the_rest_is(tmp_path: Path, files: PoolFiles) -> None:
    tensor = torch.randn(1 << 18)
    (tmp_path / "folder").mkdir()
    with files.pool:
        taken, good = files.begin("folder", tensor), files.begin("b", tensor)
        name, second = files.promise("of folder"), files.promise("of b")
        assert files.pool.link(name, taken) and files.pool.link(second, good)
    files.pool.drain()
    assert taken.is_lost and name.is_lost and len(files.failures) == 2
    assert (tmp_path / "b").stat().st_size == tensor.nbytes
    # No hidden one stays.
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["b", "folder", "of b"]


def test_a_folder_that_is_not_there_yet_is_made(tmp_path: Path, files: PoolFiles) -> None:
    files.folder = tmp_path / "new"
    files.write("a", MEGABYTE)
    files.pool.drain()
    assert (tmp_path / "new" / "a").stat().st_size == MEGABYTE


HIDDEN = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from pool_files import PoolFiles
taken = [f".tmp-{os.getpid()}-t{number}" for number in [*range(5), *range(6, 2000)]]
for name in taken:
    open(name, "w").close()
files = PoolFiles(Path("."), region=0)
print([files.write(name, 4000).data_name for name in "ab"], files.failures)
print(sum(map(os.path.getsize, taken)), os.path.getsize("a"), os.path.getsize("b"))
"""


def test_hidden_names_of_others_are_passed_over(tmp_path: Path) -> None:
    # Left by a killed process, or made by one of the same number on another machine.
    run = subprocess.run(
        [sys.executable, "-c", HIDDEN, os.path.dirname(__file__)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == ["['a', 'b'] []", "0 4000 4000"]


def test_an_interrupted_chore_is_told_when_the_files_are_written(
    tmp_path: Path, files: PoolFiles
) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    files.pool.defer(fail)
    with pytest.raises(KeyboardInterrupt), files.pool:
        tensor = torch.randn(1 << 18)
        both = [files.begin(name, tensor) for name in "ab"]
        measured = files.pool.ask(tensor)
    assert all(file.data_name for file in both) and measured.numbers is not None
    assert (tmp_path / "a").stat().st_size == tensor.nbytes


@pytest.mark.parametrize("content", [(0, 5), (1, -5), ("1", 5), (1,)])
def test_wrong_content_is_refused(files: PoolFiles, content: tuple[Any, ...]) -> None:
    write: Any = files.pool.write
    with pytest.raises((TypeError, ValueError, OverflowError)):
        write(files.promise("a"), *content, torch.ones(1))
    files.pool.drain()
    assert not list(files.folder.iterdir())


def test_a_team_wants_all_its_parts() -> None:
    compiled: Any = load_compiled("tensorprobe.capture._calls", "HostWritePool")
    with pytest.raises(KeyError, match="lock"):
        compiled.HostWritePool({})
    with pytest.raises(TypeError):
        compiled.HostWritePool()


def test_a_file_larger_than_one_write_takes(tmp_path: Path) -> None:
    size = (1 << 30) + (1 << 20)
    try:
        tensor = torch.zeros(size, dtype=torch.uint8)
    except RuntimeError:
        pytest.skip("no memory for it")
    tensor[-5:] = 7
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip("no room for it")
    files = PoolFiles(tmp_path, region=0)
    with files.pool:
        files.pool.write(files.promise("a", (b"head", b"tail")), tensor.data_ptr(), size, tensor)
    with open(tmp_path / "a", "rb") as file:
        length = file.seek(-9, os.SEEK_END) + 9
        end = file.read()
    (tmp_path / "a").unlink()
    assert length == size + 8
    assert end == b"\7" * 5 + b"tail"


def test_a_file_that_comes_alone_waits_for_the_next_as_it_was(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    tensor = torch.full((2 * MEGABYTE,), 1, dtype=torch.uint8)
    wide = torch.arange(1 << 19, dtype=torch.float32)
    with files.pool:
        first = files.begin("first", tensor)
    tensor.fill_(2)
    assert not first.is_done and files.transport._pool.used == 2 * MEGABYTE
    with files.pool:
        # Measured and copied in one go.
        second = files.begin("second", wide.view(torch.uint8))
        files.pool.ask(wide)
    assert first.is_done and second.is_done and not files.transport._pool.used
    assert set((tmp_path / "first").read_bytes()) == {1}
    with files.pool:
        third = files.begin("third", wide)
        measured = files.pool.ask(wide)
    wide.zero_()
    assert not third.is_done and measured.numbers is not None
    assert measured.numbers[0] == (1 << 19) - 1
    files.pool.empty()
    content = torch.frombuffer(bytearray((tmp_path / "third").read_bytes()), dtype=torch.float32)
    assert torch.equal(content, torch.arange(1 << 19, dtype=torch.float32))


def test_small_files_do_not_wait_nor_let_others_go(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    large, small = files.write("large", 4 * MEGABYTE), files.write("small", 100)
    assert small.is_done and not large.is_done
    files.pool.drain()
    assert large.is_done


def test_two_files_of_one_record_are_written_at_once(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    with files.pool:
        tensor = torch.ones(MEGABYTE, dtype=torch.uint8)
        both = [files.begin(name, tensor) for name in "ab"]
        assert not any(file.is_done for file in both)
    assert all(file.is_done for file in both)


def test_nothing_waits_for_ever(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    large = files.write("large", 16 * MEGABYTE)
    for _ in range(100):
        with files.pool:
            pass
    assert large.is_done and not files.transport._pool.used


def test_no_room_for_a_copy_means_now(tmp_path: Path) -> None:
    files = with_threads(tmp_path, borrow=lambda size: None)
    assert files.write("large", 8 * MEGABYTE).is_done


def test_a_file_that_somebody_could_not_wait_for_gives_its_memory_back(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    file = files.write("a", 2 * MEGABYTE)
    second = files.promise("second")
    assert not file.is_done and files.pool.link(second, file)
    file.write(b"other")
    files.pool.drain()
    assert not files.transport._pool.used
    assert second.data_name and (tmp_path / "second").samefile(tmp_path / "a")


def test_a_team_that_is_dropped_gives_its_memory_back(tmp_path: Path) -> None:
    files = with_threads(tmp_path)
    files.write("a", 2 * MEGABYTE)
    pool = files.transport._pool
    assert pool.used
    del files.pool
    assert not pool.used


def test_whoever_settles_in_the_middle_of_an_end_finds_what_is_left(files: PoolFiles) -> None:
    tensor = torch.randn(1 << 16)
    with files.pool:
        first = files.begin("a", tensor)
        second = files.begin("b", tensor, files.pool.drain)
        third = files.begin("c", tensor)
        files.pool.ask(tensor)
    files.pool.drain()
    assert [file.data_name for file in (first, second, third)] == ["a", "b", "c"]
    assert not files.failures


def test_an_interrupt_is_raised_and_not_what_came_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def borrow(size: int) -> None:
        raise MemoryError("no room")

    def interrupt() -> None:
        raise KeyboardInterrupt

    files = with_threads(tmp_path, borrow=borrow)
    files.pool.defer(interrupt)
    with pytest.raises(KeyboardInterrupt), files.pool:
        file = files.begin("a", torch.randn(1 << 18))
    assert file.data_name == "a"
    assert [one.exc_type for one in told] == [MemoryError]
