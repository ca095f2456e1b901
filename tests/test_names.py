"""Names: every real one and every generated one comes back from its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.errors import NameFormatError
from tensorprobe.names import (
    API_TYPES,
    ApiCall,
    CallName,
    ModuleCall,
    ParameterGradients,
    SavedValue,
    ValueName,
    forward_of,
    is_parameter_gradients,
    parse_call,
    parse_checker_call,
    parse_ptdbg_line,
    parse_value,
    split_model_index,
)

word = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,11}", fullmatch=True)
number = st.integers(0, 10**9)
direction = st.sampled_from(("forward", "backward"))
# A module's path: attribute names and the numbers of a list's children.
module_path = st.lists(word | number.map(str), max_size=5).map(".".join)
api_call = st.builds(
    ApiCall,
    st.sampled_from(API_TYPES) | word.filter(lambda w: w != "Module"),
    word,
    number,
    direction,
)
aten_call = st.builds(
    ApiCall, st.just("Aten"), st.tuples(word, word).map(".".join), number, direction
)
module_call = st.builds(ModuleCall, module_path, word, direction, number)
gradients = st.builds(ParameterGradients, module_path, word, st.none() | number)
saved = st.builds(SavedValue, st.lists(word | number.map(str), min_size=1).map(".".join), number)
keys = st.lists(word | number.map(str), min_size=1, max_size=4).map(tuple)


@given(api_call | aten_call | module_call | gradients)
def test_a_call_is_parsed_into_the_parts_it_was_built_from(call: CallName) -> None:
    assert parse_call(str(call)) == call


@given(saved)
def test_a_saved_value_is_parsed_into_the_parts_it_was_built_from(value: SavedValue) -> None:
    assert parse_call(str(value), saved=True) == value


@given(
    st.builds(ValueName, api_call | aten_call, st.sampled_from(("input", "kwargs", "output")), keys)
    | st.builds(
        ValueName, module_call, st.sampled_from(("input", "kwargs", "output", "parameters")), keys
    )
    | st.builds(ValueName, gradients.filter(lambda g: g.number is not None), st.just(""), keys)
    | st.builds(ValueName, saved, st.just(""), keys)
)
def test_any_generated_value_name_comes_back_as_text(value: ValueName) -> None:
    text = str(value)
    assert str(parse_value(text)) == text
    assert str(parse_value(text, saved=isinstance(value.call, SavedValue))) == text


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_with_one_error(text: str) -> None:
    for parse in (parse_call, parse_value, parse_ptdbg_line):
        try:
            result = parse(text)
        except NameFormatError as err:
            assert repr(text) in str(err)
        else:
            assert parse is parse_ptdbg_line or str(result) == text


def data_names(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["data_name"]] if isinstance(value.get("data_name"), str) else []
        return own + [name for item in value.values() for name in data_names(item)]
    if isinstance(value, list):
        return [name for item in value for name in data_names(item)]
    return []


def test_every_name_that_msprobe_wrote_comes_back(peer_dumps: Path) -> None:
    seen = 0
    for file in (*peer_dumps.rglob("dump.json"), *peer_dumps.rglob("debug.json")):
        for name, entry in json.loads(file.read_text())["data"].items():
            call = parse_call(name)
            assert str(call) == name
            for data_name in data_names(entry):
                value_name = data_name.removesuffix(".pt")
                value = parse_value(value_name)
                assert str(value) == value_name
                assert value.call == call
                seen += 1
    assert seen > 100


def test_every_name_of_the_legacy_tools_is_understood(peer_dumps: Path) -> None:
    lines = [
        json.loads(line)[0]
        for file in peer_dumps.rglob("*.pkl")
        for line in file.read_text().splitlines()
    ]
    keys = [
        key for file in peer_dumps.rglob("*_info_*.json") for key in json.loads(file.read_text())
    ]
    assert len(lines) > 100 and len(keys) > 20
    for line in lines:
        call, section, _ = parse_ptdbg_line(line)
        assert isinstance(call, (ApiCall, ModuleCall))
        assert section in ("input", "output", "stack_info")
    for key in keys:
        call = parse_checker_call(key, "forward")
        assert key.replace("*", ".") + ".forward" == str(call)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Module.backward.0.Linear.forward.0", ModuleCall("backward.0", "Linear", "forward", 0)),
        ("Module.MLP.forward.0", ModuleCall("", "MLP", "forward", 0)),
        ("Module.0.tail.Linear.backward.2", ModuleCall("0.tail", "Linear", "backward", 2)),
        ("Module.p.List.parameters_grad.0", ParameterGradients("p", "List", 0)),
        ("my.own.name.3.debug", SavedValue("my.own.name", 3)),
        ("Fused.flash.attn.1.forward", ApiCall("Fused", "flash.attn", 1, "forward")),
    ],
)
def test_a_call_with_a_misleading_part_is_read_right(text: str, expected: CallName) -> None:
    assert parse_call(text) == expected


def test_the_keys_of_a_value_may_look_like_a_call() -> None:
    value = parse_value("Torch.f.0.forward.kwargs.1.backward.input")
    assert value.call == ApiCall("Torch", "f", 0, "forward")
    assert value.path == ("1", "backward", "input")


def test_a_parameter_called_by_a_number_is_no_call_number() -> None:
    assert parse_value("Module.p.List.parameters_grad.0").path == ("0",)
    assert parse_value("Module.p.List.parameters_grad.1.0").call == ParameterGradients(
        "p", "List", 1
    )


@pytest.mark.parametrize(
    "text", ["", "Functional.linear.0", "Functional.linear.x.forward", "a" * 10_001]
)
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(NameFormatError, match="not the name of a call"):
        parse_call(text)


def test_a_value_needs_a_section() -> None:
    with pytest.raises(NameFormatError, match="not the name of a value"):
        parse_value("Functional.linear.0.forward")


def test_the_forward_call_of_a_backward_call() -> None:
    assert forward_of("Functional.linear.3.backward") == "Functional.linear.3.forward"
    assert forward_of("Module.a.B.parameters_grad") == "Module.a.B.parameters_grad"


def test_parameter_gradients_are_told_from_modules_of_such_a_name() -> None:
    assert is_parameter_gradients("Module.fc.Linear.parameters_grad")
    assert not is_parameter_gradients("Module.parameters_grad.Linear.forward.0")


def test_the_index_of_a_model_in_a_list() -> None:
    assert split_model_index("1.a.b") == (1, "a.b")
    with pytest.raises(NameFormatError, match="does not start with a model's index"):
        split_model_index("a.1")


def test_a_saved_gradient_knows_its_value() -> None:
    assert SavedValue("x_grad", 0).gradient_of == "x"
    assert SavedValue("x", 0).gradient_of is None


def test_wrong_legacy_names_are_refused() -> None:
    with pytest.raises(NameFormatError, match="api_accuracy_checker"):
        parse_checker_call("nonsense", "forward")
    with pytest.raises(NameFormatError, match="ptdbg_ascend"):
        parse_ptdbg_line("nonsense")
