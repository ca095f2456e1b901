"""Two real ranks over gloo, a fault on one of them: the sender is named, not who received."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rank_runs import capture_ranks

from tensorprobe.blame import blame
from tensorprobe.cli import main

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

TASKS = ("tensor", "statistics")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_ranks(tmp_path_factory.mktemp("runs"), 2, TASKS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("fault", "culprit", "rank", "kind", "received"),
    [
        ("before_reduction", "Functional.gelu.0.forward", 1, "scale", (0,)),
        ("before_sending", "Functional.silu.0.forward", 0, "scale", (1,)),
        ("gradient", "Torch.tanh.1.backward", 1, "scale", ()),
        ("reduction", "Distributed.all_reduce.0.forward", 1, "communication", (0,)),
        ("gathering", "Distributed.all_gather.0.forward", 0, "communication", ()),
    ],
)
def test_the_rank_where_a_fault_begins_is_named(
    runs: Path, task: str, fault: str, culprit: str, rank: int, kind: str, received: tuple[int, ...]
) -> None:
    answer = blame(runs / task / fault, runs / task / "reference")
    first = answer.first
    assert first is not None
    assert (first.call, first.rank, first.cause.kind) == (culprit, rank, kind)
    assert first.received == received
    assert first.gradient_only == (fault == "gradient")


def test_ranks_that_agree_but_for_memory_as_it_was_found_have_no_culprit(runs: Path) -> None:
    answer = blame(runs / "tensor" / "reference", runs / "statistics" / "reference")
    assert answer.culprit is None


def test_a_comparison_names_the_culprit_of_all_ranks(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = [str(runs / "statistics" / name) for name in ("before_reduction", "reference")]
    assert main(["compare", *dumps, "-o", str(tmp_path), "--first-diff"]) == 0
    assert capsys.readouterr().out.startswith(
        "culprit     Functional.gelu.0.forward.output.0  (rank 1)\n"
    )
    (file,) = tmp_path.glob("diff_analyze_*.json")
    nodes = json.loads(file.read_text())
    (node,) = nodes["rank_1"]
    assert node["culprit"]["op_name"] == "Functional.gelu.0.forward"
    assert all("culprit" not in node for node in nodes.get("rank_0", []))
