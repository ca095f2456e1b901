"""The configuration: what is refused, and with which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config_files import refusal
from tensorprobe.config import load_config
from tensorprobe.errors import ConfigError

NUMBERS = 'numbers from 0 to 1000000000 and ranges such as "4-6" in a list, or [] for every one'
NAMES = 'a list of names, such as ["relu"]'
MODES = "'all', 'forward', 'backward', 'input' or 'output'"
TASKS = "'statistics', 'tensor', 'overflow_check', 'structure' or 'run_ut'"
APIS = 'names with a dot, such as "torch_npu.npu_rms_norm" or "Tensor.__getitem__"'


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("task", "statistic", f"is 'statistic', wanted {TASKS}; did you mean 'statistics'?"),
        ("task", "dump", f"is 'dump', wanted {TASKS}"),
        ("task", False, f"is False, wanted {TASKS}"),
        ("task", ["tensor"], f"is ['tensor'], wanted {TASKS}"),
        ("level", "l1", "is 'l1', wanted 'L0', 'L1', 'L2', 'mix' or 'debug'; did you mean 'L1'?"),
        ("level", 1, "is 1, wanted 'L0', 'L1', 'L2', 'mix' or 'debug'"),
        ("dump_path", 5, "is 5, wanted a path"),
        ("dump_path", "a\0b", r"is 'a\x00b', wanted a path"),
        ("dump_path", "\ud800", r"is '\ud800', wanted a path"),
        ("enable_dataloader", "true", "is 'true', wanted true or false"),
        ("enable_dataloader", 1, "is 1, wanted true or false"),
        ("rank", "all", f"holds 'all', wanted {NUMBERS}"),
        ("rank", {"0": 1}, f"is {{'0': 1}}, wanted {NUMBERS}"),
        ("rank", [True], f"holds True, wanted {NUMBERS}"),
        ("rank", True, f"holds True, wanted {NUMBERS}"),
        ("rank", [-1], f"holds -1, wanted {NUMBERS}"),
        ("rank", ["-1"], f"holds '-1', wanted {NUMBERS}"),
        ("rank", [1.0], f"holds 1.0, wanted {NUMBERS}"),
        ("rank", [[0]], f"holds [0], wanted {NUMBERS}"),
        ("rank", ["٣"], f"holds '٣', wanted {NUMBERS}"),
        ("step", [10**9 + 1], f"holds 1000000001, wanted {NUMBERS}"),
        ("step", ["1" * 13], f"holds '1111111111111', wanted {NUMBERS}"),
        ("step", ["6-4"], "holds '6-4', wanted the smaller number first, '4-6'"),
        (
            "step",
            ["0-1000001"],
            "holds '0-1000001', wanted at most 1000001 numbers in all, or [] for every one",
        ),
        (
            "step",
            ["0-900000", "0-900000"],
            "holds '0-900000', wanted at most 1000001 numbers in all, or [] for every one",
        ),
        ("add_apis", ["relu"], f"holds 'relu', wanted {APIS}"),
        ("skip_apis", ["torch..relu"], f"holds 'torch..relu', wanted {APIS}"),
        ("add_apis", {"a.b": 1}, f"is {{'a.b': 1}}, wanted {NAMES}"),
        ("statistics", [], "is [], wanted fields in braces"),
        ("statistics", "all", "is 'all', wanted fields in braces"),
        ("statistics.list", 3, f"is 3, wanted {NAMES}"),
        ("statistics.list", ["relu", 3], f"holds 3, wanted {NAMES}"),
        ("statistics.list", ["  "], f"holds ' ', wanted {NAMES}"),
        ("statistics.tensor_list", {"relu": 1}, f"is {{'relu': 1}}, wanted {NAMES}"),
        (
            "statistics.scope",
            ["Tensor.add.0.forward"],
            "is ['Tensor.add.0.forward'], wanted two names, the first and the last call, "
            "or [] for every call",
        ),
        (
            "statistics.scope",
            ["a", "b", "c"],
            "is ['a', 'b', 'c'], wanted two names, the first and the last call, "
            "or [] for every call",
        ),
        (
            "statistics.data_mode",
            ["forwards"],
            f"holds 'forwards', wanted {MODES}; did you mean 'forward'?",
        ),
        (
            "statistics.data_mode",
            ["all", "input"],
            "is ['all', 'input'], wanted 'all' alone, or any of the others",
        ),
        (
            "statistics.summary_mode",
            "statistic",
            "is 'statistic', wanted 'statistics' or 'md5'; did you mean 'statistics'?",
        ),
        ("statistics.summary_mode", ["max", {}], "is ['max', {}], wanted 'statistics' or 'md5'"),
        ("statistics.file_format", "csv", "is 'csv', wanted 'pt' or 'npy'"),
        ("statistics.memory_budget", 0, "is 0, wanted a number of MiB from 1 to 1048576"),
        ("statistics.memory_budget", True, "is True, wanted a number of MiB from 1 to 1048576"),
        ("statistics.overflow_nums", 0, "is 0, wanted a number from 1 on, or -1 to never stop"),
        ("statistics.overflow_nums", -2, "is -2, wanted a number from 1 on, or -1 to never stop"),
        (
            "statistics.overflow_nums",
            True,
            "is True, wanted a number from 1 on, or -1 to never stop",
        ),
        ("statistics.overflow_nums", "3", "is '3', wanted a number from 1 on, or -1 to never stop"),
        ("run_ut.white_list", [1], f"holds 1, wanted {NAMES}"),
        ("run_ut.error_data_path", [], "is [], wanted a path"),
    ],
)
def test_a_wrong_value_is_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    outer, _, inner = field.partition(".")
    fields = {outer: {inner: value} if inner else value}
    if outer == "run_ut":
        fields["task"] = "run_ut"
    assert refusal(fields, tmp_path) == f"{field} {message}"


def test_a_wrong_argument_is_called_an_argument(tmp_path: Path) -> None:
    message = refusal({}, tmp_path, data_mode=["inputs"])
    assert message == f"argument data_mode holds 'inputs', wanted {MODES}; did you mean 'input'?"


@pytest.mark.usefixtures("must_end")
def test_an_endless_range_as_an_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1000001 numbers"):
        load_config(step=range(10**12))
    with pytest.raises(ConfigError, match="step holds a huge number, wanted numbers from 0"):
        load_config(step=[10**6000])


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    assert len(refusal({"level": "L" * 10**6}, tmp_path)) < 200
    assert len(refusal({"rank": {str(n): "x" * 1000 for n in range(1000)}}, tmp_path)) < 500


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"taks": "tensor"}, "taks is an unknown field; did you mean 'task'?"),
        ({"ranks": [0]}, "ranks is an unknown field; did you mean 'rank'?"),
        ({"Step": [0]}, "Step is an unknown field; did you mean 'step'?"),
        ({"dump-path": "x"}, "'dump-path' is an unknown field; did you mean 'dump_path'?"),
        ({"statistic": {}}, "statistic is an unknown field; did you mean 'statistics'?"),
        ({"asyncdump": True}, "asyncdump is an unknown field; did you mean 'async_dump'?"),
        (
            {"statistics": {"sumary_mode": "md5"}},
            "statistics.sumary_mode is an unknown field; did you mean 'summary_mode'?",
        ),
        (
            {"sumary_mode": "md5"},
            "sumary_mode is an unknown field; did you mean 'summary_mode' in the block of the "
            "task, such as 'statistics'?",
        ),
        (
            {"summary_mode": "md5"},
            "summary_mode stands in the wrong place; move it to the block of the task, "
            "such as 'statistics'",
        ),
        (
            {"statistics": {"level": "L0"}},
            "statistics.level stands in the wrong place; move it to the top level",
        ),
        (
            {"statistics": {"white_list": []}},
            "statistics.white_list stands in the wrong place; move it to the block 'run_ut'",
        ),
    ],
)
def test_a_slip_in_the_name_of_a_field_is_refused(
    tmp_path: Path, fields: object, message: str
) -> None:
    assert refusal(fields, tmp_path) == message


def test_an_api_cannot_be_added_and_left_out(tmp_path: Path) -> None:
    message = refusal({"add_apis": ["a.b", "a.c"]}, tmp_path, skip_apis=["a.c"])
    file = tmp_path / "config.json"
    assert message == f"'a.c' is in {file}: add_apis and in argument skip_apis; take it out of one"


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("statistics:\n  on: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: statistics.True is no name of a field; names are texts"


def test_a_file_with_thousands_of_fields_is_refused(tmp_path: Path) -> None:
    message = refusal({f"field{n}": 0 for n in range(1001)}, tmp_path)
    assert message == "1001 fields cannot be a configuration; check the file"


@pytest.mark.parametrize(("text", "held"), [("[1, 2]", "[1, 2]"), ("null", "nothing"), ("7", "7")])
def test_a_file_without_fields_is_refused(tmp_path: Path, text: str, held: str) -> None:
    message = refusal(json.loads(text), tmp_path)
    assert message == f"the file holds {held}, wanted fields; write at least {{}}"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.toml")
    assert str(caught.value) == (
        f"{tmp_path}/config.toml: the name of a configuration ends in .json, .yaml or .yml"
    )


@pytest.mark.parametrize("path", [5, b"config.json", {"task": "tensor"}])
def test_a_path_that_is_none_is_refused(path: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"the configuration is {path!r}, wanted the path of a .json, .yaml or .yml file"
    )


def test_a_file_that_cannot_be_read_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: the file cannot be read: No such file"):
        load_config(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"task": "tensor", # the data\n}')
    with pytest.raises(ConfigError, match="line 1, column 20: comments are not allowed in JSON"):
        load_config(broken)
