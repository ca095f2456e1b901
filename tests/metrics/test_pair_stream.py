"""Many pairs: in order, each on its own, no more memory than a few of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tensorprobe.dtypes import DTYPES
from tensorprobe.errors import TensorFileError
from tensorprobe.metrics.pair import cosine, error_ratio, measure_pair, scalar_errors
from tensorprobe.metrics.pair_stream import PairSource, is_same_file, measure_pairs
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.tensor_data import TensorData

FLOAT32 = DTYPES["torch.float32"]


def source(path: Path, number: int, equal_count: int | None = None) -> PairSource:
    a, b = path / f"a{number}.pt", path / f"b{number}.pt"
    return PairSource(number, lambda: load_tensor(a), lambda: load_tensor(b), equal_count)


def save_pair(path: Path, number: int, candidate: torch.Tensor, reference: torch.Tensor) -> None:
    torch.save(candidate, path / f"a{number}.pt")
    torch.save(reference, path / f"b{number}.pt")


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_pairs(tmp_path: Path, threads: int) -> None:
    for number in range(40):
        values = torch.arange(1.0, 2 + (number * 7919) % 5000)
        save_pair(tmp_path, number, values + number, values)
    pairs = [source(tmp_path, number) for number in range(40)]
    results = list(measure_pairs(pairs, threads=threads))
    assert [result.key for result in results] == list(range(40))
    for result, pair in zip(results, pairs, strict=True):
        assert result.numbers == measure_pair(pair.load_candidate(), pair.load_reference())
        assert result.problem is None
        assert result.numbers is not None
        assert result.read_bytes == 8 * result.numbers.count


@pytest.mark.parametrize("threads", [1, 2])
def test_a_broken_file_costs_only_its_own_pair(tmp_path: Path, threads: int) -> None:
    for number in range(4):
        save_pair(tmp_path, number, torch.ones(3), torch.ones(3))
    (tmp_path / "a1.pt").write_bytes(b"PK\x03\x04 and nothing else")
    (tmp_path / "b2.pt").unlink()
    torch.save(torch.ones(1, 3), tmp_path / "b3.pt")
    good, broken, missing, turned = measure_pairs(
        [source(tmp_path, number) for number in range(4)], threads=threads
    )
    assert good.numbers is not None
    assert (broken.side, missing.side, turned.side) == ("candidate", "reference", "")
    assert isinstance(broken.problem, TensorFileError)
    assert "b2.pt: does not exist" in str(missing.problem)
    assert (turned.numbers, turned.shapes) == (None, ((3,), (1, 3)))


def test_equal_data_are_not_read(tmp_path: Path) -> None:
    (result,) = measure_pairs([source(tmp_path, 0, equal_count=5)])
    assert result.numbers is not None
    assert not result.numbers.was_read
    assert (cosine(result.numbers), error_ratio(result.numbers, 1e-3)) == (1.0, 1.0)
    assert result.read_bytes == 0


def test_of_equal_scalars_one_side_is_read(tmp_path: Path) -> None:
    torch.save(torch.tensor(torch.inf), tmp_path / "a0.pt")
    (result,) = measure_pairs([source(tmp_path, 0, equal_count=1)])
    assert result.numbers is not None
    assert str(scalar_errors(result.numbers)) == "(nan, nan)"


def test_hard_links_are_the_same_file(tmp_path: Path) -> None:
    first, link, copy = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    first.write_bytes(b"1")
    copy.write_bytes(b"1")
    os.link(first, link)
    assert is_same_file(first, link)
    assert not is_same_file(first, copy)
    assert not is_same_file(first, tmp_path / "none")
    assert not is_same_file(first, "a\0b")


def test_pairs_are_taken_as_results_are_asked_for() -> None:
    taken = []
    ones = TensorData(FLOAT32, np.ones(8, np.float32))

    def many() -> object:
        for number in range(1000):
            taken.append(number)
            yield PairSource(number, lambda: ones, lambda: ones)

    results = measure_pairs(many(), threads=2)  # type: ignore[arg-type]
    next(results)
    assert len(taken) < 100
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before


PROGRAM = """
import resource, sys
from pathlib import Path
from tensorprobe.metrics.pair_stream import PairSource, measure_pairs
from tensorprobe.store.tensor_file import load_tensor
path = Path(sys.argv[1])
load = lambda: load_tensor(path)
limit = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = limit()
for result in measure_pairs([PairSource(number, load, load) for number in range(12)], threads=2):
    assert result.numbers.unequal == 0
print((limit() - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts in the kibibytes of Linux")
def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    np.save(path, np.ones(48 << 18, np.float32))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True
    )
    # 24 files of 48 MiB.
    assert int(done.stdout) < 120 << 20
