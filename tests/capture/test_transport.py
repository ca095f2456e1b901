"""The bytes of the moment reach the file, whatever happens to the tensor afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensorprobe.capture.transport import TensorTransport
from tensorprobe.dtypes import DTYPES
from tensorprobe.store.background import allocate_plain
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.store.tensor_files import TakenNames, TensorFiles
from tensorprobe.system.cores import count_cores

MIB = 1 << 20


class Dump:
    """A folder of tensor files, and what was lost of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.losses: list[str] = []
        self._files = TensorFiles(folder, "pt", TakenNames(), self._lose)

    def promise(self, name: str, tensor: torch.Tensor) -> PendingFile:
        file = self._files.promise(name, DTYPES[str(tensor.dtype)], tuple(tensor.shape))
        assert file is not None
        return file

    def load(self, name: str) -> torch.Tensor:
        loaded: torch.Tensor = torch.load(self.folder / f"{name}.pt", weights_only=True)
        return loaded

    def _lose(self, name: str, data_name: str, err: Exception | None) -> None:
        self.losses.append(f"{name} in {data_name}: {err}")


class SlowLane:
    """A lane from the host to the host that, as a device's, copies some time after it is asked.

    As a device does, it works on a copy that nobody else has.
    """

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.copies = 0
        self.ends = 0
        self._fails_at = fails_at

    def allocate(self, size: int) -> tuple[Any, Any]:
        return allocate_plain(size)

    def begin(self, tensor: torch.Tensor) -> torch.Tensor:
        private = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
        return private.reshape(-1).view(torch.uint8)

    def copy(self, source: torch.Tensor, owner: Any) -> Callable[[], None]:
        if self.copies == self._fails_at:
            raise RuntimeError("no copy today")
        self.copies += 1
        has_arrived = threading.Event()

        def work() -> None:
            time.sleep(0.002)
            np.copyto(owner[: source.numel()], source.numpy())
            has_arrived.set()

        threading.Thread(target=work).start()

        def wait() -> None:
            assert has_arrived.wait(60)

        return wait

    def end(self) -> None:
        self.ends += 1


TENSORS = {
    "plain": torch.arange(5000.0),
    "permuted": torch.arange(6000.0).reshape(20, 30, 10).permute(2, 0, 1),
    "expanded": torch.arange(7.0).expand(50, 7),
    "sliced": torch.arange(999)[1::3],
    "bfloat16": torch.randn(3, 333).bfloat16(),
    "bool": torch.randn(1001) > 0,
    "complex": torch.randn(77, dtype=torch.complex64),
    "conjugated": torch.randn(77, dtype=torch.complex64).conj(),
    "negated": torch.randn(77, dtype=torch.complex64).conj().imag,
    "single": torch.tensor(3.5),
}


# Where the bytes of a tensor on the host are written: straight by the caller, or by a thread.
WAYS = ["caller", "thread", "lane"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TENSORS)
def test_what_is_saved_is_what_torch_loads(tmp_path: Path, name: str, way: str) -> None:
    dump, tensor = Dump(tmp_path), TENSORS[name]
    transport = TensorTransport(MIB, part=4096, has_spare_core=way == "thread")
    file = dump.promise("a", tensor)
    if way != "lane":
        transport.save(tensor, file)
    else:
        transport.save_through(SlowLane(), tensor, file)
    transport.drain()
    assert file.data_name == "a.pt" and dump.losses == []
    assert torch.equal(dump.load("a"), tensor.resolve_conj().resolve_neg())
    assert dump.load("a").dtype == tensor.dtype


def test_an_empty_tensor_has_its_file(tmp_path: Path) -> None:
    dump, transport = Dump(tmp_path), TensorTransport(MIB)
    transport.save(torch.empty(0, 3), dump.promise("a", torch.empty(0, 3)))
    transport.drain()
    assert dump.load("a").shape == (0, 3)


@pytest.mark.parametrize("budget", [1, 1 << 14, MIB, 1 << 26])
@pytest.mark.parametrize("way", WAYS)
def test_later_writes_do_not_change_what_was_saved(tmp_path: Path, way: str, budget: int) -> None:
    dump = Dump(tmp_path)
    transport = TensorTransport(budget, part=1 << 13, has_spare_core=way == "thread")
    lane = SlowLane()
    tensor = torch.zeros(100, 100)
    for number in range(30):
        tensor.fill_(number)
        file = dump.promise(str(number), tensor)
        if way != "lane":
            transport.save(tensor, file)
        else:
            transport.save_through(lane, tensor, file)
        tensor.fill_(-1)
    transport.drain()
    assert dump.losses == []
    for number in range(30):
        assert (dump.load(str(number)) == number).all()
    if way == "lane":
        assert lane.copies >= 30 * 5 and lane.ends == 30


def test_a_copy_that_fails_costs_its_file_alone(tmp_path: Path) -> None:
    dump, transport = Dump(tmp_path), TensorTransport(MIB, part=4096)
    lane = SlowLane(fails_at=2)
    tensor = torch.arange(5000.0)
    lost = dump.promise("lost", tensor)
    transport.save_through(lane, tensor, lost)
    kept = dump.promise("kept", tensor)
    transport.save_through(SlowLane(), tensor, kept)
    transport.drain()
    assert lost.is_lost and kept.data_name == "kept.pt" and lane.ends == 1
    assert dump.losses == [
        "lost in lost.pt: it could not be copied from its device (no copy today)"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.pt"]


def test_where_every_core_is_at_work_the_caller_writes_without_a_copy(tmp_path: Path) -> None:
    dump, tensor = Dump(tmp_path), torch.arange(5000.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count_cores())
        transport = TensorTransport(MIB)
        whole = dump.promise("whole", tensor)
        transport.save(tensor, whole)
        assert whole.data_name == "whole.pt" and transport._pool.held == 0
        # What does not lie in order is copied into memory that the next one uses again.
        for number in range(3):
            transport.save(tensor.view(50, 100).T, dump.promise(str(number), tensor.view(100, 50)))
        assert transport._pool.held == 1 << 15
    finally:
        torch.set_num_threads(before)
    assert torch.equal(dump.load("2"), tensor.view(50, 100).T)


def test_release_gives_the_memory_back(tmp_path: Path) -> None:
    dump, transport = Dump(tmp_path), TensorTransport(MIB, has_spare_core=True)
    for number in range(10):
        transport.save(torch.zeros(1000), dump.promise(str(number), torch.zeros(1000)))
    transport.release()
    assert transport._pool.held == 0
    assert (load_tensor(tmp_path / "9.pt").array == 0).all()
