"""The configuration: what the older files mean, and that anything at all ends in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config_files import FULL, STOCK, load, notices
from tensorprobe.config import _CAPTURE, _GENERAL, _IGNORED, _PRECHECK, _TASKS, Config, load_config
from tensorprobe.errors import ConfigError

REPO = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TENSORPROBE_SHARED", REPO.parent / "shared"))
REAL = sorted(SHARED.glob("peer_dumps/**/config_*.json"))


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
    settings_ = {field.name for field in dataclasses.fields(Config)} - {"notices", "places"}
    assert settings_ == {"task", *_GENERAL, *_CAPTURE, *_PRECHECK}
    config = load_config(
        enable_dataloader=True,
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
    names = ["task", "dump_path", "level", "rank", "step", "enable_dataloader"]
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
        f"{path}: precision has no effect: statistics are computed in float32 or better",
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
