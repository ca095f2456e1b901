"""The configuration: what the older files mean, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.config import _CAPTURE, _GENERAL, _IGNORED, _PRECHECK, _TASKS, Config, load_config
from tensorprobe.errors import ConfigError

REPO = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TENSORPROBE_SHARED", REPO.parent / "shared"))
REAL = sorted(SHARED.glob("peer_dumps/**/config_*.json"))

# The shape of the file that an older tool installs: every block, most fields at their defaults.
STOCK = {
    "task": "statistics",
    "dump_path": "./dump_path",
    "rank": [],
    "step": [],
    "level": "L1",
    "enable_dataloader": False,
    "async_dump": False,
    "tensor": {"scope": [], "list": [], "data_mode": ["all"], "file_format": "npy"},
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "overflow_check": {"overflow_nums": 1, "check_mode": "all"},
    "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"},
    "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    "free_benchmark": {"scope": [], "list": [], "fuzz_device": "npu", "max_sample": 20},
}
FULL = {
    "task": "tensor",
    "dump_path": "/data/run 1",
    "rank": [1, "4-6"],
    "step": ["3", 0, "2-2", 0],
    "level": "mix",
    "enable_dataloader": True,
    "precision": "high",
    "add_apis": ["torch_npu.npu_scaled_masked_softmax"],
    "skip_apis": ["Tensor.__getitem__"],
    "tensor": {
        "scope": ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.forward.0"],
        "list": ["relu", "Torch.matmul.3.backward"],
        "tensor_list": [],
        "data_mode": ["input", "forward"],
        "summary_mode": "md5",
        "file_format": "npy",
    },
}


def save(fields: object, folder: Path, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def load(fields: object, folder: Path, **arguments: Any) -> Config:
    return load_config(save(fields, folder), **arguments)


def refusal(fields: object, folder: Path, **arguments: Any) -> str:
    """Give the message after the file's name, once it is known to be one line."""
    with pytest.raises(ConfigError) as caught:
        load(fields, folder, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/config.json: ")


def notices(fields: object, folder: Path, **arguments: Any) -> list[str]:
    config = load(fields, folder, **arguments)
    return [notice.removeprefix(f"{folder}/config.json: ") for notice in config.notices]


# What is read -------------------------------------------------------------------------------------


def test_without_anything_statistics_of_every_api_rank_and_step() -> None:
    config = load_config()
    assert config == Config()
    assert (config.task, config.level, config.rank, config.step) == ("statistics", "L1", (), ())
    assert config.dump_path is None
    assert config.data_mode == ("all",)


def test_the_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config().level = "L0"  # type: ignore[misc]
    assert hash(load_config()) == hash(Config())


def test_the_stock_file_of_the_older_tools_means_the_defaults(tmp_path: Path) -> None:
    config = load(STOCK, tmp_path)
    assert config == Config(dump_path=Path("dump_path"))
    assert config.notices == ()


def test_every_field_is_read(tmp_path: Path) -> None:
    assert load(FULL, tmp_path) == Config(
        task="tensor",
        dump_path=Path("/data/run 1"),
        level="mix",
        rank=(1, 4, 5, 6),
        step=(0, 2, 3),
        enable_dataloader=True,
        precision="high",
        add_apis=("torch_npu.npu_scaled_masked_softmax",),
        skip_apis=("Tensor.__getitem__",),
        scope=("Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.forward.0"),
        list=("relu", "Torch.matmul.3.backward"),
        data_mode=("forward", "input"),
        summary_mode="md5",
        file_format="npy",
    )


@pytest.mark.parametrize("name", ["config.yaml", "config.yml", "config.YAML"])
def test_yaml_says_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("task: overflow_check\nstep: 4-6\noverflow_check:\n  overflow_nums: -1\n")
    assert load_config(path) == Config(task="overflow_check", step=(4, 5, 6), overflow_nums=-1)


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    config = load(
        FULL, tmp_path, task="statistics", dump_path=tmp_path, level="L0", step=[7], rank=range(2)
    )
    assert (config.task, config.level, config.step, config.rank) == (
        "statistics",
        "L0",
        (7,),
        (0, 1),
    )
    assert config.dump_path == tmp_path
    assert config.enable_dataloader  # not given as an argument
    assert config.list == ()  # the block of the task that was asked for counts, not another one


def test_an_argument_hides_a_wrong_value_in_the_file(tmp_path: Path) -> None:
    assert load({"level": "L9", "task": "?"}, tmp_path, level="L2", task="tensor").level == "L2"


def test_an_empty_list_as_an_argument_takes_a_filter_off(tmp_path: Path) -> None:
    assert load({"step": [3]}, tmp_path, step=[]).step == ()


def test_every_setting_is_also_an_argument() -> None:
    settings_ = {field.name for field in dataclasses.fields(Config)} - {"notices"}
    assert settings_ == {"task", *_GENERAL, *_CAPTURE, *_PRECHECK}
    config = load_config(
        enable_dataloader=True,
        precision="high",
        add_apis=["a.b"],
        skip_apis="c.d",
        scope=("x", "y"),
        list="relu",
        tensor_list=["mul"],
        data_mode="backward",
        summary_mode="md5",
        file_format="npy",
        memory_budget=64,
        overflow_nums=3,
        white_list=["conv2d"],
        black_list=["conv1d"],
        error_data_path="errors",
    )
    assert config == Config(
        enable_dataloader=True,
        precision="high",
        add_apis=("a.b",),
        skip_apis=("c.d",),
        scope=("x", "y"),
        list=("relu",),
        tensor_list=("mul",),
        data_mode=("backward",),
        summary_mode="md5",
        file_format="npy",
        memory_budget=64,
        overflow_nums=3,
        white_list=("conv2d",),
        black_list=("conv1d",),
        error_data_path=Path("errors"),
    )


@pytest.mark.parametrize("left_open", [None, ""])
def test_a_field_that_is_left_open_keeps_its_default(tmp_path: Path, left_open: object) -> None:
    names = ["task", "dump_path", "level", "rank", "step", "precision", "enable_dataloader"]
    fields = dict.fromkeys(names, left_open)
    block = dict.fromkeys(_CAPTURE, left_open)
    assert load({**fields, "statistics": block}, tmp_path) == Config()
    assert load({"statistics": None}, tmp_path) == Config()


def test_names_are_trimmed_and_named_once(tmp_path: Path) -> None:
    config = load({"statistics": {"list": [" relu", "relu", "gelu"]}}, tmp_path)
    assert config.list == ("relu", "gelu")


def test_the_scope_may_begin_and_end_at_the_same_call(tmp_path: Path) -> None:
    scope = ["Tensor.add.0.forward"] * 2
    assert load({"statistics": {"scope": scope}}, tmp_path).scope == tuple(scope)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([], ()),
        ([3, 1, 1], (1, 3)),
        (["4-6", 5, "0"], (0, 4, 5, 6)),
        ([" 4 - 6 "], (4, 5, 6)),
        (2, (2,)),
        ("8-9", (8, 9)),
        (["0-1000000"], tuple(range(1_000_001))),
        ([10**9], (10**9,)),
    ],
)
def test_steps_and_ranks_are_numbers_and_ranges(tmp_path: Path, written: Any, read: Any) -> None:
    config = load({"step": written, "rank": written}, tmp_path)
    assert config.step == config.rank == read


def test_integers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert load_config(step=[numpy.int64(3)], rank=(numpy.uint8(1),)).step == (3,)


def test_filters_answer_for_one_rank_step_or_tensor() -> None:
    config = load_config(rank=["2-3"], step=[0, 5], data_mode=["backward"])
    assert [config.wants_rank(n) for n in range(5)] == [False, False, True, True, False]
    assert [config.wants_step(n) for n in (0, 1, 5, 6)] == [True, False, True, False]
    assert config.wants_data("backward", "input")
    assert config.wants_data("backward", "output")
    assert not config.wants_data("forward", "output")
    assert load_config().wants_data("forward", "output")
    sides = load_config(data_mode=["output"])
    assert sides.wants_data("forward", "output")
    assert sides.wants_data("backward", "output")
    assert not sides.wants_data("forward", "input")


# Files of the older tools -------------------------------------------------------------------------


@pytest.mark.skipif(not REAL, reason="no peer_dumps in the shared folder")
def test_every_real_file_is_accepted() -> None:
    for path in REAL:
        written = json.loads(path.read_text())
        config = load_config(path)
        assert config.task == written["task"]
        assert config.level == written["level"]
        assert config.list == tuple(written[config.task].get("list", []))
        assert all("async_dump" in notice for notice in config.notices)
    assert len(REAL) > 100


@pytest.mark.parametrize(
    ("task", "block", "expected"),
    [
        ("structure", {"scope": [], "list": []}, Config(task="structure")),
        ("overflow_check", {"overflow_nums": 3}, Config(task="overflow_check", overflow_nums=3)),
        ("overflow_check", {"check_mode": "all"}, Config(task="overflow_check")),
        ("statistics", {"tensor_list": ["relu"]}, Config(tensor_list=("relu",))),
    ],
)
def test_a_block_of_each_task_is_read(
    tmp_path: Path, task: str, block: dict[str, object], expected: Config
) -> None:
    assert load({"task": task, task: block}, tmp_path) == expected


@pytest.mark.parametrize("task", ["run_ut", "acc_check"])
def test_the_pre_check_reads_its_own_block(tmp_path: Path, task: str) -> None:
    block = {"white_list": ["conv1d"], "black_list": ["relu"], "error_data_path": "./"}
    fields = {"task": task, "level": "L1", task: block}
    expected = Config(
        task="run_ut", white_list=("conv1d",), black_list=("relu",), error_data_path=Path()
    )
    assert load(fields, tmp_path) == expected
    assert load({**fields, "task": "tensor"}, tmp_path, task="run_ut") == expected
    assert load({**fields, "task": "tensor"}, tmp_path).white_list == ()


def test_the_oldest_file_of_the_pre_check_has_no_block(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("white_list: [conv2d]\nblack_list: []\nerror_data_path: './'\nprecision: 14\n")
    config = load_config(path, task="run_ut")
    assert config.white_list == ("conv2d",)
    assert config.notices == (
        f"{path}: precision has no effect: a number of digits, which the older pre-check printed",
    )
    assert load_config(path).white_list == ()


@pytest.mark.parametrize("task", ["free_benchmark", "grad_probe", "exception_dump"])
def test_a_task_without_counterpart_captures_statistics(tmp_path: Path, task: str) -> None:
    fields = {"task": task, task: {"scope": ["a", "b", "c"]}, "statistics": {"list": ["mul"]}}
    config = load(fields, tmp_path)
    assert (config.task, config.list) == ("statistics", ("mul",))
    assert notices(fields, tmp_path) == [
        f"task {task!r} has no counterpart here; 'statistics' is captured instead"
    ]


def test_the_newer_nan_check_is_an_overflow_check(tmp_path: Path) -> None:
    fields = {"task": "nan_check", "nan_check": {"list": ["div"], "data_mode": ["all"]}}
    assert load(fields, tmp_path).task == "overflow_check"
    assert load(fields, tmp_path).list == ("div",)
    assert notices(fields, tmp_path) == ["task 'nan_check' runs as 'overflow_check'"]
    assert load_config(task="nan_check").notices == (
        "argument task 'nan_check' runs as 'overflow_check'",
    )


@pytest.mark.parametrize("field", _IGNORED)
def test_a_field_without_a_meaning_is_named_once(tmp_path: Path, field: str) -> None:
    reason = _IGNORED[field][1]
    assert notices({field: "something"}, tmp_path) == [f"{field} has no effect: {reason}"]
    assert notices({"statistics": {field: "something"}}, tmp_path) == [
        f"statistics.{field} has no effect: {reason}"
    ]
    assert notices({"tensor": {field: "something"}}, tmp_path) == []


@pytest.mark.parametrize("field", _IGNORED)
def test_a_field_that_asks_for_nothing_is_not_named(tmp_path: Path, field: str) -> None:
    for value in (None, "", *_IGNORED[field][0]):
        assert notices({field: value}, tmp_path) == []


@pytest.mark.parametrize(
    ("field", "value", "read", "notice"),
    [
        ("summary_mode", "xor", "md5", "'xor' is done by 'md5' here, a CRC-32"),
        (
            "summary_mode",
            ["max", "min"],
            "statistics",
            "is a list: every statistic is written, and the checksum where it is asked for",
        ),
        (
            "summary_mode",
            ["mean", "hash"],
            "md5",
            "is a list: every statistic is written, and the checksum where it is asked for",
        ),
        (
            "file_format",
            "bin",
            "pt",
            "'bin' has no effect: real data is written as .pt, or as .npy",
        ),
    ],
)
def test_a_value_of_another_version_is_translated(
    tmp_path: Path, field: str, value: object, read: str, notice: str
) -> None:
    fields = {"statistics": {field: value}}
    assert getattr(load(fields, tmp_path), field) == read
    assert notices(fields, tmp_path) == [f"statistics.{field} {notice}"]


def test_a_block_that_is_not_asked_for_is_not_looked_at(tmp_path: Path) -> None:
    fields = {"tensor": {"data_mode": "?", "nonsense": 1}, "run_ut": 7, "grad_probe": []}
    assert load(fields, tmp_path) == Config()


def test_an_unknown_field_far_from_every_known_one_is_named(tmp_path: Path) -> None:
    fields = {"telemetry": {"url": "x"}, "statistics": {"quantiles": [1]}, "two words": 1}
    assert notices(fields, tmp_path) == [
        "telemetry has no effect: no field of this name is known",
        "'two words' has no effect: no field of this name is known",
        "statistics.quantiles has no effect: no field of this name is known",
    ]


# What is refused ----------------------------------------------------------------------------------

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
        ("precision", "hight", "is 'hight', wanted 'high' or 'low'; did you mean 'high'?"),
        ("precision", True, "is True, wanted 'high' or 'low'"),
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


def test_an_endless_range_as_an_argument_is_refused() -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError, match="at most 1000001 numbers"):
        load_config(step=range(10**12))
    with pytest.raises(ConfigError, match="step holds a huge number, wanted numbers from 0"):
        load_config(step=[10**6000])
    assert time.monotonic() - start < 8


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
    assert message == "'a.c' is in add_apis and in skip_apis; take it out of one"


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


def test_a_file_that_cannot_be_read_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: the file cannot be read: No such file"):
        load_config(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"task": "tensor", # the data\n}')
    with pytest.raises(ConfigError, match="line 1, column 20: comments are not allowed in JSON"):
        load_config(broken)


# Anything at all ----------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
words = st.sampled_from(
    [*_GENERAL, *_CAPTURE, *_PRECHECK, *_IGNORED, *_TASKS, "task", "all", "4-6"]
)
plain = scalars | words | st.lists(scalars | words, max_size=3)
blocks = st.dictionaries(words | st.text(max_size=9), plain, max_size=4)
files = plain | st.dictionaries(words | st.text(max_size=9), plain | blocks, max_size=6)


@settings(max_examples=300, deadline=None)
@given(files, st.fixed_dictionaries({}, optional={"task": plain, "step": plain, "list": plain}))
def test_any_value_gives_a_config_or_one_line(fields: object, arguments: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = load(fields, Path(folder), **arguments)
        except ConfigError as err:
            assert "\n" not in str(err)
        else:
            assert isinstance(config, Config)
            assert not any("\n" in notice for notice in config.notices)


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_a_damaged_file_gives_a_config_or_one_line(tmp_path: Path, name: str) -> None:
    text = json.dumps(FULL, indent=1)  # which is YAML as well
    chance = random.Random(11)
    path = tmp_path / name
    accepted = 0
    for _ in range(600):
        place, other = chance.randrange(len(text)), chance.randrange(len(text))
        middle = chance.choice(["", '"', ",", "0", "]", "}", "\n", text[other : other + 9]])
        path.write_text(text[:place] + middle + text[place + chance.randint(0, 5) :])
        try:
            load_config(path)
            accepted += 1
        except ConfigError as err:
            assert "\n" not in str(err)
    assert 5 < accepted < 600


# The house ----------------------------------------------------------------------------------------


def test_the_manual_names_every_field() -> None:
    manual = (REPO / "docs" / "config.md").read_text(encoding="utf-8")
    for field in ("task", *_GENERAL, *_CAPTURE, *_PRECHECK, *_IGNORED, *_TASKS):
        assert f"`{field}`" in manual, field


def test_the_examples_in_the_manual_are_accepted(tmp_path: Path) -> None:
    manual = (REPO / "docs" / "config.md").read_text(encoding="utf-8")
    examples = re.findall(r"```(json|yaml)\n(.*?)```", manual, re.DOTALL)
    assert {kind for kind, _ in examples} == {"json", "yaml"}
    for kind, text in examples:
        path = tmp_path / f"config.{kind}"
        path.write_text(text)
        assert load_config(path).notices == ()


def test_reading_a_configuration_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, tensorprobe.config; print(sorted({'torch', 'numpy', 'yaml'} & {*sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
