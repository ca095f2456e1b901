"""Reading a whole dump flat gives what its records give, and tells what they tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from conftest import DATA, peer_root
from store.test_open_dump import write_dump
from store.test_writer import calls, values
from tensorprobe.records import CallRecord, DumpInfo, Value
from tensorprobe.store import DumpWriter, RankDump, entry_file, open_dump
from tensorprobe.store.leaves import leaves_of

COUNTS = json.loads((DATA / "peer_counts.json").read_text())
THERE = sorted(path for path in COUNTS if (peer_root() / path).exists())


def check_same(part: RankDump, flat: RankDump) -> None:
    # As texts: a NaN equals nothing, and True is not 1 here.
    assert repr(list(flat.read_leaves())) == repr([leaves_of(call) for call in part])
    assert flat.known_gaps == part.known_gaps


@pytest.mark.parametrize("path", THERE)
def test_every_dump_of_the_older_tools_reads_the_same_flat(path: str) -> None:
    ours, flat = (open_dump(peer_root() / path) for _ in range(2))
    for part, other in zip(ours.parts, flat.parts, strict=True):
        check_same(part, other)


@settings(max_examples=200, deadline=None)
@given(calls, values)
def test_any_call_reads_the_same_flat(
    tmp_path_factory: pytest.TempPathFactory, call: CallRecord, value: Value
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    gradients = CallRecord("Module.fc.Linear.parameters_grad.0", parameters={"weight": value})
    with DumpWriter(folder / "calls", DumpInfo()) as writer:
        assert writer.write(call)
        assert writer.write(gradients)
    with DumpWriter(folder / "saved", DumpInfo(level="debug")) as writer:
        assert writer.write(CallRecord("x.0.debug", saved=(value,)))
    for name in ("calls", "saved"):
        check_same(open_dump(folder / name).parts[0], open_dump(folder / name).parts[0])


def test_places_name_section_and_way_down(tmp_path: Path) -> None:
    write_dump(
        tmp_path,
        '"Module.a.A.forward.0": {"input_args": [[{"type": "int", "value": 1}], []], '
        '"input_kwargs": {"k": {"x": null}}, "output": [null], "is_recompute": true, '
        '"parameters": {"weight": {"type": "slice", "value": [1, null, null]}}}',
    )
    (call,) = open_dump(tmp_path).parts[0].read_leaves()
    assert (call.name, call.is_recompute) == ("Module.a.A.forward.0", True)
    assert [(leaf.place, leaf.kind) for leaf in call.leaves] == [
        ("input.0.0", "int"),
        ("kwargs.k.x", "none"),
        ("parameters.weight", "slice"),
        ("output.0", "none"),
    ]


def test_more_arguments_than_are_usual_are_counted_on(tmp_path: Path) -> None:
    arguments = ", ".join(f'{{"type": "int", "value": {number}}}' for number in range(100))
    write_dump(tmp_path, f'"Torch.a.0.forward": {{"input_args": [{arguments}]}}')
    (call,) = open_dump(tmp_path).parts[0].read_leaves()
    assert [(leaf.place, leaf.max) for leaf in call.leaves] == [
        (f"input.{number}", number) for number in range(100)
    ]


BROKEN = [
    '{"input_args": ]}',
    '{"input_args": []}, {"input_args": []}',
    '{"input_args": [',
    ']}, {"output": [',
    "",
    "3",
    '{"input_args": 5}',
    '{"input_args": ""}',
    '{"input_kwargs": []}',
    '{"output": {}}',
    '{"input_args": [{"type": "torch.Tensor", "dtype": 3, "shape": []}]}',
    '{"input_args": [{"type": "torch.Tensor", "dtype": "t", "shape": [true]}]}',
    '{"input_args": [{"type": "torch.Tensor", "dtype": "t", "shape": [2.0]}]}',
    '{"input_args": [' + "[" * 300 + "]" * 300 + "]}",
]


@pytest.mark.parametrize("whole_batches", [True, False])
def test_a_damaged_entry_is_the_same_gap_and_the_rest_comes(
    tmp_path: Path, whole_batches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole_batches:
        monkeypatch.setattr(entry_file, "_BATCH", 1)
    good = '{"input_args": [{"type": "torch.Tensor", "dtype": "t", "shape": [1, 2], "Max": 1}]}'
    entries = []
    for number, broken in enumerate(BROKEN):
        entries += [
            f'"Torch.good.{number}.forward": {good}',
            f'"Torch.bad.{number}.forward": {broken}',
        ]
    write_dump(tmp_path, ",\n  ".join(entries))
    part, flat = (open_dump(tmp_path).parts[0] for _ in range(2))
    check_same(part, flat)
    names = [call.name for call in flat.read_leaves()]
    assert [name for name in names if "good" in name] == [
        f"Torch.good.{number}.forward" for number in range(len(BROKEN))
    ]
    assert len(flat.known_gaps) >= len(BROKEN) - 1


def test_reading_twice_gives_the_same_and_no_gap_twice(tmp_path: Path) -> None:
    write_dump(tmp_path, '"Torch.a.0.forward": {"output": [null]},\n  "Torch.b.0.forward": 3')
    part = open_dump(tmp_path).parts[0]
    assert list(part.read_leaves()) == list(part.read_leaves())
    assert len(part.known_gaps) == 1
