"""The files of ptdbg_ascend, as we write them: beside real ones, and beside a dump of our own."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from older_runs import REAL, lines_of, same_input, same_net

from ptdbg_ascend import acc_cmp_dump, register_hook, set_dump_path, set_dump_switch
from tensorprobe import PrecisionDebugger, load_config, open_dump
from tensorprobe.records import ScalarValue, TensorValue
from tensorprobe.store import RankDump

# What the tool looked at after a call had written over it; we record what went in.
SEEN_TOO_LATE = (
    "Tensor_add__0_forward_input.0",
    "Functional_batch_norm_0_forward_input.1",
    "Functional_batch_norm_0_forward_input.2",
    "Functional_relu_0_forward_input.0",
)
# What torch calls by itself as a backward pass begins is no call of the user's.
OF_TORCH = "Torch_ones_like"


def dump(folder: Path, **switch: Any) -> Path:
    """Capture one step as a script of ptdbg_ascend does; returns the pkl."""
    net, x = same_net(), same_input()
    set_dump_path(folder)
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON", **switch)
    net(x).backward()
    set_dump_switch("OFF")
    (pkl,) = (folder / "ptdbg_dump_v3.4/rank0").glob("*.pkl")
    return pkl


def names_of(lines: list[list[Any]]) -> list[str]:
    return [line[0] for line in lines]


def test_lines_are_those_of_the_real_tool(tmp_path: Path) -> None:
    real = lines_of(REAL)
    ours = lines_of(dump(tmp_path, mode="api_stack"))
    mine = {line[0]: line for line in ours}
    forward = [line for line in real if "_forward_" in line[0] and OF_TORCH not in line[0]]
    assert len(forward) > 60
    # Where both saw a call, every value of it, in the same order, and nothing else.
    calls = dict.fromkeys(name.rpartition("_")[0] for name in names_of(forward))
    for call in calls:
        there = [name for name in names_of(real) if name.startswith(f"{call}_")]
        assert [name for name in names_of(ours) if name.startswith(f"{call}_")] == there
    order = [name for name in names_of(ours) if name in set(names_of(forward))]
    assert order == names_of(forward)
    for line in forward:
        name, *facts = line
        if name.endswith("stack_info"):
            frames = mine[name][1]
            assert all(isinstance(part, str) for frame in frames for part in frame)
            assert frames and {len(frame) for frame in frames} == {4}
            continue
        assert mine[name][1:5] == facts[:4]
        if name not in SEEN_TOO_LATE:
            assert_same_numbers(mine[name][5], facts[4], name)


def assert_same_numbers(ours: list[Any], real: list[Any], name: str) -> None:
    assert [type(number) for number in ours] == [type(number) for number in real], name
    for mine, theirs in zip(ours, real, strict=True):
        if isinstance(theirs, float):
            # It computed with the dtype of the tensor, we in float64.
            assert mine == pytest.approx(theirs, rel=4e-3, abs=1e-6, nan_ok=True), name
        else:
            assert mine == theirs, name


def test_gradients_of_results_are_those_of_the_real_tool(tmp_path: Path) -> None:
    mine = {line[0]: line for line in lines_of(dump(tmp_path, mode="api_stack"))}
    real = [line for line in lines_of(REAL) if "_backward_input" in line[0]]
    assert len(real) > 12
    for name, *facts in real:
        assert mine[name][1:5] == facts[:4]
        assert_same_numbers(mine[name][5], facts[4], name)


def test_arrays_are_those_of_the_real_tool(tmp_path: Path) -> None:
    arrays = dump(tmp_path, mode="api_stack").with_suffix("")
    files = REAL.with_suffix("").glob("*_forward_*")
    real = [file for file in files if OF_TORCH not in file.name]
    assert len(real) > 60
    for file in real:
        ours, theirs = np.load(arrays / file.name), np.load(file)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), file.name
        if file.stem not in SEEN_TOO_LATE:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=file.name)
    # bfloat16, which numpy does not have, and a plain number.
    assert np.load(arrays / "Torch_mul_0_forward_input.0.npy").dtype == np.float32
    assert np.load(arrays / "Torch_mul_0_forward_input.1.npy").shape == ()


def own_dump(folder: Path, **fields: Any) -> RankDump:
    config = load_config(dump_path=folder, file_format="npy", **fields)
    net, x = same_net(), same_input()
    with PrecisionDebugger.from_config(config):
        net(x).backward()
    (part,) = open_dump(folder).parts
    return part


def test_it_holds_what_a_dump_of_our_own_holds(tmp_path: Path) -> None:
    own = own_dump(tmp_path / "own", task="tensor")
    (part,) = open_dump(dump(tmp_path, mode="api_stack")).parts
    assert list(part.names) == list(own.names) and not part.gaps
    compared = 0
    for call in own:
        there = {(leaf.section, leaf.path): leaf.value for leaf in part.call(call.name).leaves()}
        # What was given by name has a number there.
        given = (*(call.inputs or ()), *(call.kwargs or {}).values())
        for leaf in replace(call, inputs=given, kwargs={}).leaves():
            value = there.get((leaf.section, leaf.path))
            if isinstance(leaf.value, TensorValue):
                assert isinstance(value, TensorValue)
                assert (value.dtype, value.shape) == (leaf.value.dtype, leaf.value.shape)
                ours, theirs = own.load(leaf.value).values(), part.load(value).values()
                np.testing.assert_array_equal(ours, theirs)
                compared += 1
                if value.norm is not None:
                    assert value.max == leaf.value.max or value.max != value.max
                    assert value.norm == leaf.value.norm or value.norm != value.norm
            elif isinstance(leaf.value, ScalarValue) and leaf.section == "input":
                assert value == leaf.value
        # The two runs differ in the test's own frames.
        assert part.stack(call.name)[0] == own.stack(call.name)[0]
    assert compared > 60


def test_without_data_there_are_statistics_alone(tmp_path: Path) -> None:
    pkl = dump(tmp_path, mode="all", summary_mode="summary")
    assert pkl.name == "dump.pkl"
    assert sorted(child.name for child in pkl.parent.iterdir()) == ["dump.pkl"]
    lines = lines_of(pkl)
    assert not [name for name in names_of(lines) if name.endswith("stack_info")]
    assert all(line[2] == [] and len(line[5]) == 4 for line in lines)
    only = dump(tmp_path / "only", mode="all", summary_only=True)
    assert names_of(lines_of(only)) == names_of(lines)


def test_checksums_are_those_of_the_bytes(tmp_path: Path) -> None:
    lines = {line[0]: line for line in lines_of(dump(tmp_path, summary_mode="md5"))}
    weight = lines["Functional_linear_0_forward_input.1"]
    array = same_net().fc.weight.detach().numpy()
    assert weight[2] == f"{zlib.crc32(array.tobytes()):08x}" and weight[5] == []
    assert lines["Functional_conv2d_0_forward_input.6"][2:] == [[], "<class 'int'>", "[]", [1] * 4]


def test_a_filter_leaves_floating_tensors_alone(tmp_path: Path) -> None:
    lines = lines_of(dump(tmp_path, filter_switch="ON"))
    assert {line[3] for line in lines} == {"torch.float32", "torch.bfloat16"}
    assert all(line[4] not in ("[]", [], [0, 3]) for line in lines)


@pytest.mark.parametrize(
    ("switch", "stem", "calls", "has_stacks"),
    [
        ({"mode": "list", "scope": ["Torch_sum", "Torch.mul.1"]}, "list_dump",
         {"Torch_sum_0_forward", "Torch_sum_0_backward", "Torch_mul_1_forward"}, True),
        ({"mode": "list", "scope": "Tensor_add__0_forward"}, "list_dump",
         {"Tensor_add__0_forward"}, True),
        ({"mode": "api_list", "api_list": ["RELU", "linear_0_f"]}, "api_list_dump",
         {"Functional_relu_0_forward", "Functional_relu_0_backward",
          "Functional_linear_0_forward"}, False),
        ({"mode": "range", "scope": ["Torch_flatten_0_forward", "Torch_arange_0_forward"]},
         "range_dump", {"Torch_flatten_0_forward", "Functional_linear_0_forward",
                        "Torch_arange_0_forward"}, True),
        ({"mode": "api_list", "api_list": ["linear"], "dump_mode": ["backward"]},
         "api_list_dump", {"Functional_linear_0_backward"}, False),
    ],
)  # fmt: skip
def test_modes_choose_calls(
    tmp_path: Path, switch: dict[str, Any], stem: str, calls: set[str], has_stacks: bool
) -> None:
    pkl = dump(tmp_path, **switch)
    assert pkl.name == f"{stem}.pkl"
    names = names_of(lines_of(pkl))
    values = [name for name in names if not name.endswith("stack_info")]
    assert {name.rpartition("_")[0] for name in values} == calls
    assert (len(values) < len(names)) is has_stacks
    assert {file.stem for file in pkl.with_suffix("").iterdir()} == set(values)


def test_the_mode_stack_has_stacks_alone(tmp_path: Path) -> None:
    from tensorprobe.errors import DumpError

    pkl = dump(tmp_path, mode="stack", scope=["Torch_flatten_0_forward"])
    assert pkl.name == "stack_dump.pkl" and not pkl.with_suffix("").exists()
    assert names_of(lines_of(pkl)) == ["Torch_flatten_0_forward_stack_info"]
    with pytest.raises(DumpError, match="holds call stacks alone, as the mode 'stack' writes"):
        open_dump(pkl)


def test_modules_are_named_as_by_the_real_tool(tmp_path: Path) -> None:
    net, x = same_net(), same_input()
    set_dump_path(tmp_path, dump_tag="modules")
    register_hook(net, acc_cmp_dump, dump_mode="model")
    set_dump_switch("ON", mode="api_stack", summary_mode="summary")
    net(x).backward()
    set_dump_switch("OFF")
    names = names_of(lines_of(tmp_path / "modules_v3.4/rank0/api_stack_dump.pkl"))
    # As in the dump of 2024-03 that was made of a model, which itself has no line.
    assert names[:6] == [
        "conv_Conv2d_0_forward_input.0",
        "conv_Conv2d_0_forward_output",
        "conv_Conv2d_0_forward_stack_info",
        "bn_BatchNorm2d_0_forward_input.0",
        "bn_BatchNorm2d_0_forward_output",
        "bn_BatchNorm2d_0_forward_stack_info",
    ]
    assert {name.partition("_")[0] for name in names} == {"conv", "bn", "relu", "fc"}


def test_no_data_stay_twice_and_nothing_else_stays(tmp_path: Path) -> None:
    pkl = dump(tmp_path, mode="api_stack")
    arrays = list(pkl.with_suffix("").iterdir())
    # What had two names in the dump has two here, and no third elsewhere.
    inodes = [os.stat(file).st_ino for file in arrays]
    assert all(os.stat(f).st_nlink == inodes.count(os.stat(f).st_ino) for f in arrays)
    assert [child.name for child in tmp_path.iterdir()] == ["ptdbg_dump_v3.4"]
    assert [child.name for child in (tmp_path / "ptdbg_dump_v3.4").iterdir()] == ["rank0"]
    found = sorted(child.name for child in pkl.parent.iterdir())
    assert found == ["api_stack_dump", "api_stack_dump.pkl"]


def test_a_link_in_the_place_of_the_data_goes_and_where_it_led_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    rank = tmp_path / "dump/ptdbg_dump_v3.4/rank0"
    rank.mkdir(parents=True)
    (rank / "dump").symlink_to(elsewhere)
    (rank / "dump.pkl").symlink_to(elsewhere / "mine.txt")
    pkl = dump(tmp_path / "dump", mode="all")
    assert not pkl.is_symlink() and not pkl.with_suffix("").is_symlink()
    assert [child.name for child in elsewhere.iterdir()] == ["mine.txt"]
    assert (elsewhere / "mine.txt").read_text() == "mine"


def test_a_rank_folder_that_is_a_link_is_not_written_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    tag = tmp_path / "dump/ptdbg_dump_v3.4"
    tag.mkdir(parents=True)
    (tag / "rank0").symlink_to(elsewhere)
    net, x = same_net(), same_input()
    set_dump_path(tmp_path / "dump")
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    net(x).backward()
    set_dump_switch("OFF")
    assert list(elsewhere.iterdir()) == []
    assert "is a link, which no dump is written through" in caplog.text
    # Nothing is lost: the dump itself is where the line says.
    (left,) = tag.glob("unfinished_*")
    assert len(open_dump(left).parts[0]) > 20
    assert str(left) in caplog.text and "`tensorprobe show` opens it" in caplog.text
