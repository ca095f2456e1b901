"""What a file says that nobody can use is described where it enters, and never used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from opened import write_dump

from tensorprobe.records import ScalarValue, SliceValue, TensorValue, UnknownValue
from tensorprobe.store import open_dump
from tensorprobe.store.leaf_decode import LeafDecoder
from tensorprobe.store.leaves import leaves_of


def decoded(raw: Any) -> tuple[Any, list[str]]:
    problems: list[str] = []
    return LeafDecoder(problems).decode(raw), problems


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("int", "3"),
        ("int", 1.5),
        pytest.param("int", 10**5000, id="endless"),
        ("float", 10**400),
        ("bool", 1),
        ("str", 3),
        ("int8", 300),
        ("uint64", -1),
        ("float32", 10**400),
        ("float64", "x"),
        ("datetime64", 3),
        ("void", 3),
        ("object_", "x"),
        ("generic", 1.0),
        ("complexfloating", "1j"),
    ],
)
def test_a_type_that_has_no_such_value_is_unknown(type_name: str, value: Any) -> None:
    found, problems = decoded({"type": type_name, "value": value})
    assert isinstance(found, UnknownValue)
    assert found.type_name == type_name
    assert found.text
    assert not problems


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("int", 10**400),
        ("int", True),
        ("float", 3),
        ("float", math.inf),
        ("int8", -128),
        ("uint64", 2**64 - 1),
        ("float32", 0.5),
        ("bool_", True),
        ("str_", "x"),
        ("MyEnum", 3),
    ],
)
def test_what_a_type_can_be_is_kept(type_name: str, value: Any) -> None:
    assert decoded({"type": type_name, "value": value}) == (ScalarValue(type_name, value), [])


@pytest.mark.parametrize(
    "shape", [[2**32] * 3, [1] * 1000, [-1], [2**63], [True], [1.0], [[2]], "2", None]
)
def test_a_shape_that_no_tensor_has_is_told(shape: Any) -> None:
    found, problems = decoded({"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape})
    assert found == UnknownValue("torch.Tensor", "malformed")
    (problem,) = problems
    assert "shape" in problem
    assert len(problem) < 300


def test_a_statistic_that_no_float_holds_is_told_and_the_others_stay() -> None:
    raw = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [2], "Max": 10**400, "Min": 1}
    found, problems = decoded(raw)
    assert isinstance(found, TensorValue)
    assert (found.max, found.min) == (None, 1)
    assert len(problems) == 1


def test_a_slice_may_reach_beyond_everything() -> None:
    assert decoded({"type": "slice", "value": [0, 10**30, None]})[0] == SliceValue(0, 10**30, None)


def test_a_batch_of_batches_of_sends_ends() -> None:
    raw: Any = None
    for _ in range(5000):
        raw = {"class_type": "P2POp", "op": "isend", "peer": 1, "tensor": raw}
    _, problems = decoded(raw)
    assert "nested" in problems[0]


@pytest.mark.parametrize("in_lines", [True, False])
def test_one_record_that_no_parser_takes_costs_only_itself(tmp_path: Path, in_lines: bool) -> None:
    good = '{"input_args": [{"type": "int", "value": 3}], "output": []}'
    bad = '{"input_args": [{"type": "int", "value": ' + "9" * 5000 + "}]}"
    between = ",\n  " if in_lines else ", "
    entries = between.join(
        f'"Torch.add.{number}.forward": {bad if number == 1 else good}' for number in range(3)
    )
    path = write_dump(tmp_path, entries)
    if not in_lines:
        path.write_text(path.read_text().replace("\n", " "))
    (part,) = open_dump(path).parts
    assert len(part.names) == 3
    assert [call.name for call in part] == ["Torch.add.0.forward", "Torch.add.2.forward"]
    (gap,) = part.known_gaps
    assert "Torch.add.1.forward" in gap.problem
    flat = open_dump(path).parts[0]
    assert list(flat.read_leaves()) == [leaves_of(call) for call in part]
