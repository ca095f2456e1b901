"""Calls are paired and walked in the order in which they ran."""

from __future__ import annotations

from pathlib import Path

from tensorprobe import DumpWriter, open_dump
from tensorprobe.blame.recorded_run import RecordedRun, open_runs
from tensorprobe.pairing.call_pairs import CallPair, pair_calls
from tensorprobe.pairing.run_order import phase_of
from tensorprobe.records import CallRecord, DumpInfo, TensorValue


def side(folder: Path, names: list[str]) -> RecordedRun:
    value = TensorValue("torch.float32", (2,), 1.0, 0.0, 0.5, 1.0)
    with DumpWriter(folder, DumpInfo()) as writer:
        for name in names:
            if ".parameters_grad" in name:
                writer.write(CallRecord(name, parameters={"weight": value}))
            else:
                writer.write(CallRecord(name, inputs=(value,), kwargs={}, outputs=(value,)))
    return RecordedRun(open_dump(folder).parts[0])


def shown(pairs: list[CallPair]) -> list[tuple[str | None, str | None]]:
    return [(p.candidate and p.candidate.name, p.reference and p.reference.name) for p in pairs]


def test_parameter_gradients_are_made_in_the_backward_pass(tmp_path: Path) -> None:
    names = [
        "Module.fc.Linear.forward.0",
        "Module.fc.Linear.parameters_grad",
        "Module.head.Linear.forward.0",
        "Module.head.Linear.backward.0",
        "Module.fc.Linear.backward.0",
    ]
    run = side(tmp_path, names)
    assert [pair.name for pair in pair_calls(run, run)] == [
        "Module.fc.Linear.forward.0",
        "Module.head.Linear.forward.0",
        "Module.head.Linear.backward.0",
        "Module.fc.Linear.backward.0",
        "Module.fc.Linear.parameters_grad",
    ]
    assert phase_of("Module.fc.Linear.parameters_grad") == "backward"


def test_calls_behind_an_extra_one_are_paired_by_their_order(tmp_path: Path) -> None:
    ours = side(
        tmp_path / "a",
        [
            "Torch.relu.0.forward",
            "Torch.relu.1.forward",
            "Torch.abs.0.forward",
            "Torch.relu.2.forward",
        ],
    )
    theirs = side(
        tmp_path / "b", ["Torch.relu.0.forward", "Torch.abs.0.forward", "Torch.relu.1.forward"]
    )
    assert shown(pair_calls(ours, theirs)) == [
        ("Torch.relu.0.forward", "Torch.relu.0.forward"),
        ("Torch.relu.1.forward", None),
        ("Torch.abs.0.forward", "Torch.abs.0.forward"),
        ("Torch.relu.2.forward", "Torch.relu.1.forward"),
    ]


def test_what_only_the_reference_has_stands_in_its_place(tmp_path: Path) -> None:
    ours = side(tmp_path / "a", ["Torch.relu.0.forward", "Torch.exp.0.forward"])
    theirs = side(
        tmp_path / "b", ["Torch.relu.0.forward", "Torch.abs.0.forward", "Torch.exp.0.forward"]
    )
    pairs = pair_calls(ours, theirs)
    assert [(pair.position, pair.name) for pair in pairs] == [
        (0, "Torch.relu.0.forward"),
        (1, "Torch.abs.0.forward"),
        (2, "Torch.exp.0.forward"),
    ]
    assert pairs[1].candidate is None


def test_a_part_of_a_run_begins_where_something_differs(tmp_path: Path) -> None:
    forward = [f"Torch.relu.{number}.forward" for number in range(1000)]
    backward = [f"Torch.relu.{number}.backward" for number in reversed(range(1000))]
    run = side(tmp_path, forward + backward).part
    ours, theirs, left_out = open_runs(run, run, most=900, first="Torch.relu.600.backward")
    pairs = pair_calls(ours, theirs)
    names = [pair.name for pair in pairs]
    assert names[:50] == forward[:50]
    assert "Torch.relu.800.backward" in names and "Torch.relu.0.backward" in names
    assert "Torch.relu.801.backward" not in names and "Torch.relu.900.forward" not in names
    # What a gradient is replayed from comes along.
    assert "Torch.relu.600.forward" in names
    assert all(pair.candidate and pair.reference for pair in pairs)
    assert left_out == 2000 - len(names)
    assert open_runs(run, run, most=2000, first=None)[2] == 0


def test_a_part_of_a_run_has_what_only_the_reference_has_there(tmp_path: Path) -> None:
    names = [f"Torch.relu.{number}.forward" for number in range(900)]
    ours = side(tmp_path / "a", names).part
    extra = [*names[:10], "Torch.abs.0.forward", *names[10:700], "Torch.abs.1.forward"]
    theirs = side(tmp_path / "b", extra + names[700:]).part
    sides = open_runs(ours, theirs, most=100, first=names[300])[:2]
    only = [pair.name for pair in pair_calls(*sides) if pair.candidate is None]
    assert only == ["Torch.abs.0.forward"]
    sides = open_runs(ours, theirs, most=100, first=names[699])[:2]
    only = [pair.name for pair in pair_calls(*sides) if pair.candidate is None]
    assert only == ["Torch.abs.0.forward", "Torch.abs.1.forward"]
