"""Memory that nobody computed, and memory that is only written into, accuses nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import DumpWriter, blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue


def sized(norm: float) -> TensorValue:
    return TensorValue("torch.float32", (8, 8), norm / 2, -norm / 2, 0.01, norm)


def write(folder: Path, name: str, *, given: float, found: float, result: float) -> Path:
    """Write a call that is given memory, and one that uses its result."""
    with DumpWriter(folder, DumpInfo(level="L1")) as writer:
        writer.write(
            CallRecord(f"{name}.0.forward", (sized(given), sized(3.0)), {}, (sized(found),))
        )
        writer.write(CallRecord("Functional.gelu.0.forward", (sized(4.0),), {}, (sized(result),)))
    return folder


@pytest.mark.parametrize("name", ["Torch.empty", "Tensor.new_empty", "Torch.empty_like"])
def test_memory_as_it_was_found_is_not_compared(tmp_path: Path, name: str) -> None:
    pair = [
        write(tmp_path / side, name, given=1.0, found=found, result=5.0)
        for side, found in (("a", 7.0), ("b", 9.0))
    ]
    answer = blame(*pair)
    assert (answer.verdict, answer.differing) == ("identical", 0)
    assert any("memory as it was found" in note for note in answer.notes)


@pytest.mark.parametrize("name", ["Tensor.copy_", "Distributed.recv", "Distributed.all_gather"])
def test_what_is_only_written_into_is_not_compared(tmp_path: Path, name: str) -> None:
    pair = [
        write(tmp_path / side, name, given=given, found=7.0, result=5.0)
        for side, given in (("a", 1.0), ("b", 2.0))
    ]
    assert blame(*pair).verdict == "identical"


def test_a_call_behind_it_is_accused_all_the_same(tmp_path: Path) -> None:
    pair = [
        write(tmp_path / side, "Torch.empty", given=1.0, found=found, result=result)
        for side, found, result in (("a", 7.0, 5.5), ("b", 9.0, 5.0))
    ]
    assert blame(*pair).culprit == "Functional.gelu.0.forward"
