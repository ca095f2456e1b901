"""Reading a whole dump flat gives what its records give, and tells what they tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import DATA, peer_root
from store.test_open_dump import write_dump
from store.test_writer import calls, values
from tensorprobe.records import CallRecord, DumpInfo, Value
from tensorprobe.store import DumpWriter, open_dump
from tensorprobe.store.json_text import parse_json
from tensorprobe.store.leaf_walk import LeafWalker
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
    '{"input_args": [null,]}',
    '{"input_args": [null] "output": []}',
    '{"input_args": [nul]}',
    '{"output": [], "output": [null], }',
    '{"input_args": [{"type": "float", "value": 1.}]}',
    '{"input_args": [{"type": "float", "value": .5}]}',
    '{"input_args": [{"type": "float", "value": 01.5}]}',
    '{"input_args": [{"type": "float", "value": 1.5e}]}',
    '{"input_args": [{"type": "float", "value": -}]}',
    '{"input_args": [{"type": "int", "value": 1 2}]}',
    '{"input_args": [{"type": "str", "value": "a\tb"}]}',
    '{"input_args": [{"type": "str", "value": "a\0b"}]}',
    '{"input_args": [{"type": "str", "value": "a}]}',
]


def test_a_damaged_entry_is_the_same_gap_and_the_rest_comes(tmp_path: Path) -> None:
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
    '{"type": "int", "value": -0}',
    '{"type": "int", "value": 1, "value": 2}',
    '{"value": 1, "type": "int"}',
    '{"type": "float", "value": -0.0}',
    '{"type": "float", "value": -Infinity}',
    '{"type": "float", "value": 1e400}',
    '{"type": "float", "value": 1e-400}',
    '{"type": "str", "value": "\\u00e9\\n\\ud83d\\ude00"}',
    '{"type": "str", "value": "é"}',
    '{"type": "str", "value": ""}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [2], "shape": [3]}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [-1]}',
    '{"type": "torch.Tensor", "dtype": "t", "shape": [99999999999999999999]}',
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
        "e": f'{{"input_kwargs": {{"k": {leaf}, "k": null, "l": {leaf}}}, "is_recompute": 1}}',
        "f": f'{{"input_args": [{leaf}], "more": 1, "is_recompute": true, "is_recompute": false}}',
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


def _number_read(text: str) -> float:
    walker = LeafWalker()
    entry = f'{{"input_args": [{{"type": "float", "value": {text}}}]}}'.encode()
    call = walker.text_call("Torch.a.0.forward", entry)
    if call is None:
        call = walker.call("Torch.a.0.forward", parse_json(entry))
    assert call is not None
    number: float = call.leaves[0].max
    return number


@settings(max_examples=2000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 25))
@example(5e-324, 17)
@example(2.2250738585072014e-308, 17)
@example(1.7976931348623157e308, 16)
@example(9007199254740993.0, 16)
@example(2.0**-1022, 20)
def test_a_number_is_read_as_python_reads_it(number: float, digits: int) -> None:
    texts = [f"{number:.{digits}e}", f"{number:.{digits}E}"]
    if "." in repr(number) or "e" in repr(number):
        texts.append(repr(number))
    if 1e-30 < abs(number) < 1e30:
        texts.append(f"{number:.{digits + 1}f}")
    for text in texts:
        # The largest number, rounded up, is none that a float can hold.
        if abs(float(text)) <= 1.7976931348623157e308:
            assert _number_read(text).hex() == float(text).hex()


@settings(max_examples=2000, deadline=None)
@given(st.integers(1, 2**53 - 1), st.integers(-40, 900), st.sampled_from((-1, 0, 1)))
def test_numbers_at_and_beside_half_way_between_two_floats_round_to_even(
    mantissa: int, exponent: int, beside: int
) -> None:
    # Half way between two neighbours: all digits, and the last one changed.
    half = (2 * mantissa + 1) << exponent if exponent >= 0 else 0
    text = f"{half + beside}.0" if half else f"{(2 * mantissa + 1) / 2 ** (1 - exponent)!r}"
    assert _number_read(text).hex() == float(text).hex()
    short = f"{half + beside:.18e}" if half < 10**300 else "1.5"
    assert _number_read(short).hex() == float(short).hex()


@settings(max_examples=2000, deadline=None)
@given(st.integers(0, 10**19), st.integers(-330, 290))
def test_any_nineteen_digits_and_exponent_are_read_as_python_reads_them(
    digits: int, exponent: int
) -> None:
    text = f"{digits}e{exponent}"
    assert _number_read(text).hex() == float(text).hex()
