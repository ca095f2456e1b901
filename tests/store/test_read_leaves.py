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
from tensorprobe.store import DumpWriter, entry_file, open_dump
from tensorprobe.store.leaves import leaves_of

COUNTS = json.loads((DATA / "peer_counts.json").read_text())
THERE = sorted(path for path in COUNTS if (peer_root() / path).exists())


def check_same(path: Path) -> None:
    """Whether the compiled walker, Python and the records give the same values and gaps."""
    for part, flat, by_python in zip(*(open_dump(path).parts for _ in range(3)), strict=True):
        # As texts: a NaN equals nothing, and True is not 1 here.
        records = repr([leaves_of(call) for call in part])
        assert repr(list(flat.read_leaves())) == records
        assert flat.known_gaps == part.known_gaps
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TENSORPROBE_NO_KERNEL", "1")
            assert repr(list(by_python.read_leaves())) == records
        assert by_python.known_gaps == part.known_gaps


@pytest.mark.parametrize("path", THERE)
def test_every_dump_of_the_older_tools_reads_the_same_flat(path: str) -> None:
    check_same(peer_root() / path)


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
        check_same(folder / name)


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
    check_same(tmp_path)
    flat = open_dump(tmp_path).parts[0]
    names = [call.name for call in flat.read_leaves()]
    assert [name for name in names if "good" in name] == [
        f"Torch.good.{number}.forward" for number in range(len(BROKEN))
    ]
    assert len(flat.known_gaps) >= len(BROKEN) - 1


ODD_LEAVES = [
    '{"type": "torch.Tensor", "dtype": "t", "shape": [], "Max": null, "md5": "a", "data_name": ""}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [2], "Max": true, "data_name": "a.pt"}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [2], "unknown": true, "value": "x"}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [2], "Max": 3, "Max_finite": 1}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [2], "more": 1}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [{}]}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": "2"}',
    '{"type": "int", "value": true}',
    '{"type": "int", "value": 123456789012345678901234567890}',
    '{"type": "float", "value": 1}',
    '{"type": "float", "value": NaN}',
    '{"type": "bool", "value": null}',
    '{"type": "str", "unknown": true}',
    '{"type": "float32", "value": 0.5}',
    '{"type": 3, "value": 0.5}',
    '{"type": {"type": "int", "value": 1}}',
    '{"class_type": "torch.distributed.P2POp", "op": "isend", "peer": 1, "tensor": null}',
    "{}",
    "[]",
    "[[]]",
    "3",
    '"text"',
]


@pytest.mark.parametrize("leaf", ODD_LEAVES)
def test_an_odd_leaf_reads_as_its_record_does(tmp_path: Path, leaf: str) -> None:
    good = '{"type": "torch.Tensor", "dtype": "t", "shape": [2]}'
    sections = {
        "a": f'{{"input_args": [{good}, {leaf}, {leaf}]}}',
        "b": f'{{"input_kwargs": {{"k": {leaf}}}, "input": [{leaf}]}}',
        "c": f'{{"output": [{good}, {leaf}], "parameters": {{"": {leaf}, "w": {good}}}}}',
        "d": f'{{"input_args": null, "input": [{leaf}], "output": null}}',
    }
    entries = [f'"Torch.{name}.0.forward": {entry}' for name, entry in sections.items()]
    entries.append(
        f'"Module.m.M.parameters_grad.0": {{"w": [{leaf}], "b": {leaf}, "": [[{leaf}]]}}'
    )
    write_dump(tmp_path, ",\n  ".join(entries))
    check_same(tmp_path)


def test_reading_twice_gives_the_same_and_no_gap_twice(tmp_path: Path) -> None:
    write_dump(tmp_path, '"Torch.a.0.forward": {"output": [null]},\n  "Torch.b.0.forward": 3')
    part = open_dump(tmp_path).parts[0]
    assert list(part.read_leaves()) == list(part.read_leaves())
    assert len(part.known_gaps) == 1
