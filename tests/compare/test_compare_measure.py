"""Nothing is read twice, or at all where the answer is known."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_dumps import compare_rows, write_data

from tensorprobe.compare.measure import Measurer
from tensorprobe.store import RankDump
from tensorprobe.tensor_data import TensorData

CALL = "Torch.relu.0.forward"
DATA = {CALL: {"input": [np.arange(6.0, dtype=np.float32)] * 2, "output": [np.zeros((0, 3))]}}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every data file that is loaded, in order."""
    names: list[str] = []
    load = RankDump.load_file

    def counting(part: RankDump, name: str) -> TensorData:
        names.append(name)
        return load(part, name)

    monkeypatch.setattr(RankDump, "load_file", counting)
    return names


def test_one_file_on_both_sides_is_not_read(tmp_path: Path, reads: list[str]) -> None:
    dump = write_data(tmp_path / "a", DATA)
    _, rows = compare_rows(dump, dump, tmp_path)
    assert [row["Cosine"] for row in rows] == [1.0, 1.0, "unsupported"]
    assert reads == []


def test_linked_tensors_are_read_once(tmp_path: Path, reads: list[str]) -> None:
    """A capture writes the output of one call and the input of the next as one file."""
    sides = []
    for side in ("a", "b"):
        dump = write_data(tmp_path / side, DATA)
        first, second = (next(dump.rglob(f"*input.{index}.pt")) for index in (0, 1))
        second.unlink()
        os.link(first, second)
        sides.append(dump)
    compare_rows(*sides, tmp_path)
    assert sorted(reads) == sorted(2 * [f"{CALL}.input.0.pt", f"{CALL}.output.0.pt"])


def test_equal_checksums_are_not_read(tmp_path: Path, reads: list[str]) -> None:
    sides = []
    for side in ("a", "b"):
        dump = write_data(tmp_path / side, DATA)
        path = next(dump.rglob("dump.json"))
        path.write_text(path.read_text().replace('"data_name":', '"md5": "0badc0de", "data_name":'))
        sides.append(dump)
    _, rows = compare_rows(*sides, tmp_path)
    assert rows[0]["MaxAbsErr"] == 0.0 and reads == []


def test_the_answer_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 400_000)).astype(np.float32)
    ours = write_data(tmp_path / "a", {CALL: {"input": [numbers]}})
    theirs = write_data(tmp_path / "b", {CALL: {"input": [numbers * np.float32(1.0001)]}})
    first, second = (
        compare_rows(ours, theirs, tmp_path / str(jobs), jobs=jobs)[1] for jobs in (1, 3)
    )
    assert first == second
    assert first[0]["Cosine"] == pytest.approx(1.0)
    assert 0 < first[0]["MaxAbsErr"] < 1e-3


def test_what_is_measured_is_let_go(tmp_path: Path) -> None:
    """Mapped files of a dump that is compared do not pile up."""
    ours = write_data(
        tmp_path / "a",
        {f"Torch.a.{n}.forward": {"input": [np.full(100_000, n, np.float32)]} for n in range(50)},
    )
    theirs = tmp_path / "b"
    shutil.copytree(ours, theirs)
    from tensorprobe.pairing.match import Matcher
    from tensorprobe.store import open_dump

    pair = [open_dump(side).parts[0] for side in (ours, theirs)]
    measurer = Measurer(*pair)
    for call in Matcher(*pair).calls():
        measurer.measure_all(call.pairs)
    assert Path("/proc/self/maps").read_text().count(".pt\n") == 0
