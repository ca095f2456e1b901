"""Many ranks: the earliest culprit, and never a rank that only received."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import DumpWriter
from tensorprobe.blame import blame
from tensorprobe.errors import DumpError
from tensorprobe.records import CallRecord, DumpInfo, TensorValue

RANKS = (0, 1, 2)


def tensor(size: float) -> TensorValue:
    """A tensor whose statistics are all in proportion to one number."""
    return TensorValue(
        "torch.float32", (4, 8), size, -0.9 * size, 0.01 * size, 2.5 * size, requires_grad=False
    )


def write(folder: Path, sizes: dict[int, dict[str, float]]) -> Path:
    """Write ranks that each compute, reduce, and compute again; `sizes` changes single results."""
    for rank in RANKS:
        changed = sizes.get(rank, {})

        def size(name: str, usual: float, changed: dict[str, float] = changed) -> TensorValue:
            return tensor(changed.get(name, usual))

        calls = [
            ("Functional.gelu.0.forward", tensor(1.0 + rank), size("gelu", 2.0 + rank)),
            ("Distributed.all_reduce.0.forward", size("gelu", 2.0 + rank), size("reduced", 9.0)),
            ("Functional.silu.0.forward", size("reduced", 9.0), size("silu", 8.0)),
        ]
        target = folder / "step0" / f"rank{rank}"
        with DumpWriter(target, DumpInfo(rank=rank, step=0, level="L1")) as writer:
            for name, given, result in calls:
                writer.write(CallRecord(name, inputs=(given,), kwargs={}, outputs=(result,)))
    return folder


def test_the_rank_that_sent_the_bad_value_is_named(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", {})
    late = {"reduced": 9.3, "silu": 8.2}
    candidate = write(tmp_path / "candidate", {0: late, 1: {"gelu": 3.3, **late}, 2: late})
    answer = blame(candidate, reference)
    assert answer.culprit == "Functional.gelu.0.forward"
    assert answer.first is not None
    assert answer.first.rank == 1
    assert answer.first.received == (0, 2)


def test_a_collective_that_gives_what_nobody_sent_is_communication(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", {})
    candidate = write(tmp_path / "candidate", {2: {"reduced": 9.3, "silu": 8.2}})
    answer = blame(candidate, reference)
    assert answer.culprit == "Distributed.all_reduce.0.forward"
    assert answer.first is not None
    assert (answer.first.rank, answer.first.cause.kind) == (2, "communication")


def test_a_collective_that_is_wrong_on_all_ranks_is_one_suspect(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", {})
    late = {"reduced": 9.3, "silu": 8.2}
    answer = blame(write(tmp_path / "candidate", {0: late, 1: late, 2: late}), reference)
    assert [accused.call for accused in answer.accused] == ["Distributed.all_reduce.0.forward"]
    assert answer.first is not None and answer.first.received == (1, 2)


def test_the_clock_of_the_ranks_is_their_collectives(tmp_path: Path) -> None:
    """A fault after the collective on one rank comes later than one before it on another."""
    reference = write(tmp_path / "reference", {})
    late = {"reduced": 9.3, "silu": 8.2}
    candidate = write(tmp_path / "candidate", {0: {**late, "silu": 1.0}, 2: {"gelu": 4.4, **late}})
    answer = blame(candidate, reference)
    assert answer.first is not None
    assert (answer.culprit, answer.first.rank) == ("Functional.gelu.0.forward", 2)


def test_ranks_that_agree_are_identical(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", {})
    assert blame(write(tmp_path / "candidate", {}), reference).verdict == "identical"


def test_dumps_without_a_common_rank_are_refused(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", {})
    candidate = tmp_path / "candidate"
    for rank in (7, 8):
        with DumpWriter(candidate / "step0" / f"rank{rank}", DumpInfo(rank=rank, step=0)) as writer:
            writer.write(CallRecord("Torch.relu.0.forward", inputs=(tensor(1.0),)))
    with pytest.raises(DumpError, match="no step and rank in common"):
        blame(candidate, reference)
