"""Where the first value came from that is not finite, over all ranks, from statistics alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe import DumpWriter, PrecisionDebugger
from tensorprobe.overflow.origin import Origin
from tensorprobe.records import CallRecord, DumpInfo, ScalarValue, TensorValue
from tensorprobe.store.writer import rank_folder

INF, NAN = math.inf, math.nan


def tensor(high: float, low: float | None = None) -> TensorValue:
    return TensorValue("torch.float32", (4,), high, high if low is None else low, high, high)


def call(name: str, given: float, made: float) -> CallRecord:
    return CallRecord(
        f"{name}.forward", inputs=(tensor(given),), kwargs={}, outputs=(tensor(made),)
    )


def write_rank(
    path: Path, calls: list[CallRecord], *, rank: int, step: int = 0, task: str = "statistics"
) -> None:
    folder = rank_folder(path, step=step, rank=rank)
    info = DumpInfo(rank=rank, step=step, level="L1", task=task)
    with DumpWriter(folder, info) as writer:
        for record in calls:
            writer.write(record)


def origins(path: Path, out: Path) -> tuple[Origin, ...]:
    return tensorprobe.overflow(path, out).origins


def test_the_rank_with_the_fewest_calls_before_it_comes_first(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    write_rank(dump, [call("Torch.a.0", 1, 1), call("Torch.b.0", 1, INF)], rank=0)
    write_rank(dump, [call("Torch.a.0", 1, NAN), call("Torch.b.0", NAN, NAN)], rank=1)
    found = origins(dump, tmp_path)
    assert [(o.part, o.name, o.place, o.made) for o in found] == [
        ("step0/rank1", "Torch.a.0.forward", 0, True),
        ("step0/rank0", "Torch.b.0.forward", 1, True),
    ]
    assert (found[0].inputs, found[0].outputs) == ("[1, 1]", "nan")


def test_a_rank_that_got_it_through_a_collective_did_not_make_it(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    reduce = "Distributed.all_reduce.0"
    write_rank(dump, [call(reduce, 1, NAN), call("Torch.a.0", NAN, NAN)], rank=0)
    long = [call(f"Torch.step.{n}", 1, 1) for n in range(5)]
    write_rank(dump, [*long, call("Torch.log.0", 0, -INF), call(reduce, -INF, NAN)], rank=1)
    found = origins(dump, tmp_path)
    assert [(o.part, o.name, o.made) for o in found] == [
        ("step0/rank1", "Torch.log.0.forward", True),
        ("step0/rank0", "Torch.a.0.forward", False),
    ]


def test_a_dump_of_overflows_alone_names_the_rank_that_made_it(tmp_path: Path) -> None:
    # Rank 1 does not record its all_reduce: that was given the infinity.
    dump, task = tmp_path / "dump", "overflow_check"
    write_rank(dump, [call("Distributed.all_reduce.0", 1, -INF)], rank=0, task=task)
    write_rank(dump, [call("Torch.log.0", 0, -INF)], rank=1, task=task)
    assert [(o.part, o.name, o.made) for o in origins(dump, tmp_path)] == [
        ("step0/rank1", "Torch.log.0.forward", True),
        ("step0/rank0", "Distributed.all_reduce.0.forward", False),
    ]


def test_a_rank_whose_search_has_ended_may_still_spoil_a_collective(tmp_path: Path) -> None:
    dump, task = tmp_path / "dump", "overflow_check"
    write_rank(dump, [call("Torch.log.0", 0, -INF)], rank=1, step=1, task=task)
    write_rank(dump, [call("Distributed.all_reduce.0", 1, -INF)], rank=0, step=2, task=task)
    assert [(o.part, o.made) for o in origins(dump, tmp_path)] == [
        ("step1/rank1", True),
        ("step2/rank0", False),
    ]


def test_a_sum_that_all_ranks_record_is_the_origin_before_what_comes_later(
    tmp_path: Path,
) -> None:
    dump, task = tmp_path / "dump", "overflow_check"
    reduce = call("Distributed.all_reduce.0", 3e38, INF)
    write_rank(dump, [reduce], rank=0, task=task)
    write_rank(dump, [reduce, call("Torch.log.0", 0, -INF)], rank=1, task=task)
    found = origins(dump, tmp_path)
    assert {(o.name, o.made) for o in found} == {("Distributed.all_reduce.0.forward", True)}


def test_what_a_rank_made_before_a_collective_comes_first(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    reduce = call("Distributed.all_reduce.0", 3e38, INF)
    write_rank(dump, [reduce], rank=0)
    before = [call(f"Torch.step.{n}", 1, 1) for n in range(5)]
    write_rank(dump, [*before, call("Torch.log.0", 0, -INF), reduce], rank=1)
    assert [(o.part, o.name, o.made) for o in origins(dump, tmp_path)] == [
        ("step0/rank1", "Torch.log.0.forward", True),
        ("step0/rank0", "Distributed.all_reduce.0.forward", True),
    ]


def test_what_is_received_was_not_made_by_the_receiver(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    received = [call("Distributed.recv.0", 1, NAN), call("Torch.a.0", NAN, NAN)]
    write_rank(dump, received, rank=0)
    write_rank(dump, [call("Torch.b.0", 1, 1), call("Torch.log.0", -1, NAN)], rank=1)
    assert [(o.part, o.name, o.made) for o in origins(dump, tmp_path)] == [
        ("step0/rank1", "Torch.log.0.forward", True),
        ("step0/rank0", "Torch.a.0.forward", False),
    ]


def test_a_sum_over_ranks_that_overflows_by_itself_is_the_origin(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    for rank in range(2):
        write_rank(dump, [call("Distributed.all_reduce.0", 3e38, INF)], rank=rank)
    assert origins(dump, tmp_path)[0].name == "Distributed.all_reduce.0.forward"


def test_an_earlier_step_comes_first(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    late = [call(f"Torch.a.{n}", 1, 1) for n in range(3)]
    write_rank(dump, [*late, call("Torch.b.0", 1, INF)], rank=0, step=1)
    write_rank(dump, [call("Torch.a.0", 1, INF)], rank=0, step=2)
    assert [o.part for o in origins(dump, tmp_path)] == ["step1/rank0", "step2/rank0"]


def test_a_mask_in_an_earlier_step_does_not_hide_what_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorprobe.cli import main

    x = torch.zeros(2)
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump")
    for step in range(2):
        debugger.start()
        x.masked_fill(torch.tensor([True, False]), -torch.inf)
        if step == 1:
            torch.log(x)
        debugger.stop()
        debugger.step()
    debugger.close()
    assert main(["overflow", str(tmp_path / "dump"), "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (
        "The first call that made a value that is not finite: Torch.log.0.forward in step1/rank, "
    ) in printed
    assert "No recorded call made it" not in printed


def test_what_comes_from_outside_is_said_to_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorprobe.cli import main

    dump = tmp_path / "dump"
    mask = CallRecord(
        "Tensor.masked_fill.0.forward",
        inputs=(tensor(1), ScalarValue("float", -INF)),
        kwargs={},
        outputs=(tensor(1, -INF),),
    )
    write_rank(dump, [call("Torch.a.0", 1, 1), mask], rank=0)
    assert main(["overflow", str(dump), "-o", str(tmp_path)]) == 0
    assert (
        "No recorded call made it; the first call that was given a value that is not finite: "
        "Tensor.masked_fill.0.forward in step0/rank0, from [-inf, 1] to [-inf, 1]"
    ) in capsys.readouterr().out


def test_a_clean_dump_has_no_origin(tmp_path: Path) -> None:
    write_rank(tmp_path / "dump", [call("Torch.a.0", 1, 2)], rank=0)
    assert origins(tmp_path / "dump", tmp_path) == ()


def test_the_statistics_of_a_real_run_are_enough(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="mix")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    debugger.start(model)
    scores = model(torch.ones(2, 3)).masked_fill(torch.eye(2, 3).bool(), -torch.inf)
    weights = torch.softmax(scores, -1)
    (torch.log(weights) * weights).sum().backward()
    debugger.stop()
    debugger.close()
    found = origins(tmp_path / "dump", tmp_path)
    assert found[0].name == "Torch.log.0.forward"


def test_a_name_that_is_no_calls_and_a_damaged_rank_cost_only_themselves(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    write_rank(dump, [call("Torch.a.0", 1, 1), call("Torch.b.0", 1, INF)], rank=0)
    write_rank(dump, [call("Torch.c.0", 1, 1)], rank=1)
    write_rank(dump, [], rank=2)
    damaged = rank_folder(dump, step=0, rank=2) / "dump.json"
    damaged.write_text("no dump")
    odd = rank_folder(dump, step=0, rank=1) / "dump.json"
    odd.write_text(odd.read_text().replace("Torch.c.0.forward", "Distributed.c"))
    report = tensorprobe.overflow(dump, tmp_path)
    assert [(o.part, o.name) for o in report.origins] == [("step0/rank0", "Torch.b.0.forward")]
    assert [o.name for o in report.overflows] == ["Torch.b.0.forward"]
    assert [gap.path for gap in report.gaps] == [damaged]


def test_a_number_that_no_float_holds_is_shown(tmp_path: Path) -> None:
    record = CallRecord(
        "Torch.add.0.forward",
        inputs=(tensor(1), ScalarValue("int", 10**400)),
        kwargs={},
        outputs=(tensor(INF),),
    )
    write_rank(tmp_path / "dump", [record], rank=0)
    (found,) = origins(tmp_path / "dump", tmp_path)
    assert found.inputs == "[1, 1.00e+400]"
