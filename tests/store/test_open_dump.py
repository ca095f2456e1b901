"""open_dump: every dump of every tool opens, whole, and nothing in it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from opened import tensors_of, write_dump

from conftest import DATA, peer_root
from tensorprobe.errors import DumpError
from tensorprobe.names import parse_call
from tensorprobe.records import (
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
)
from tensorprobe.store import open_dump

COUNTS = json.loads((DATA / "peer_counts.json").read_text())
THERE = sorted(path for path in COUNTS if (peer_root() / path).exists())


@pytest.mark.parametrize("path", THERE)
def test_a_dump_has_the_calls_and_tensors_that_were_counted_by_hand(path: str) -> None:
    (part,) = open_dump(peer_root() / path).parts
    tensors = tensors_of(part)
    with_data = [tensor for tensor in tensors if tensor.data_name is not None]
    assert {
        "calls": len(list(part)),
        "tensors": len(tensors),
        "with_data": len(with_data),
        "with_checksum": sum(tensor.checksum is not None for tensor in tensors),
    } == COUNTS[path]
    assert part.gaps == ()
    for tensor in with_data:
        data = part.load(tensor)
        assert data.shape == tensor.shape
        # ptdbg_ascend widens bfloat16 in its files, as numpy has none.
        assert data.dtype.name == tensor.dtype or part.info.tool == "ptdbg_ascend"
    for name in part.names:
        assert str(parse_call(name)) == name


def test_the_repository_holds_a_dump_of_every_kind() -> None:
    held = {path for path in COUNTS if (DATA / "peer_dumps" / path).exists()}
    assert len(held) >= 20
    assert {path.split("/")[0] for path in held} == {path.split("/")[0] for path in COUNTS}


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        ("msprobe-8.2.1/mlp/L1_tensor/npu", ["step0/rank"]),
        ("msprobe-8.2.1/mlp/L1_tensor/npu/step0", ["step0/rank"]),
        ("msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank", ["step0/rank"]),
        ("msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank/dump.json", ["step0/rank"]),
        ("msprobe-8.2.1/dist/L1_md5/npu/step0", ["step0/rank0", "step0/rank1"]),
        ("msprobe-8.2.1/gpt/L0_statistics_2steps/npu", ["step0/rank", "step1/rank"]),
        ("msprobe-8.2.1/debug_save/tensor/npu/step1/rank/debug.json", ["step1/rank"]),
        ("api_accuracy_checker/2024-10/real_data", ["step0/proc2310"]),
        (
            "api_accuracy_checker/2024-10/real_data/step0/backward_info_2310.json",
            ["step0/proc2310"],
        ),
        ("api_accuracy_checker/2023-11/statistics", ["proc2848"]),
        ("ptdbg_ascend/2024-03/all/npu", ["step0/proc3447"]),
        (
            "ptdbg_ascend/2024-03/all/npu/ptdbg_dump_v3.0/step0/rank103447/api_stack_dump.pkl",
            ["step0/proc3447"],
        ),
    ],
)
def test_any_level_of_the_folders_can_be_opened(
    peer_dumps: Path, path: str, labels: list[str]
) -> None:
    dump = open_dump(peer_dumps / path)
    assert [part.label for part in dump.parts] == labels


def test_a_processes_folder_of_the_newest_msprobe_opens(peer_dumps: Path) -> None:
    (part,) = open_dump(peer_dumps / "msprobe-26.2.0/mlp_L1_tensor/npu").parts
    assert part.info.rank is None
    assert part.info.process is not None
    assert part.label == f"step0/proc{part.info.process}"


def test_a_dump_says_what_it_is(peer_dumps: Path) -> None:
    info = open_dump(peer_dumps / "msprobe-8.2.1/dist/L1_md5/npu").parts[1].info
    assert (info.tool, info.task, info.level, info.step, info.rank) == (
        "msprobe",
        "statistics",
        "L1",
        0,
        1,
    )
    assert info.complete


def test_one_part_is_found_by_step_and_rank(peer_dumps: Path) -> None:
    dump = open_dump(peer_dumps / "msprobe-8.2.1/dist/L1_md5/npu")
    assert dump.part(rank=1).info.rank == 1
    assert dump.ranks == (0, 1) and dump.steps == (0,)
    with pytest.raises(DumpError, match="no part fits rank 7; there are: step0/rank0, step0/rank1"):
        dump.part(rank=7)
    with pytest.raises(DumpError, match="several parts fit without a step or rank"):
        dump.part()


def test_values_of_every_kind_are_understood() -> None:
    part = open_dump(DATA / "peer_dumps/msprobe-8.2.1/edge/mix_statistics/npu").parts[0]
    values = [leaf.value for call in part for leaf in call.leaves()]
    kinds = {type(value) for value in values}
    assert kinds >= {
        TensorValue,
        ScalarValue,
        SliceValue,
        EllipsisValue,
        SizeValue,
        DtypeValue,
        DeviceValue,
        MemoryFormatValue,
        type(None),
    }
    assert {value.type_name for value in values if isinstance(value, ScalarValue)} >= {
        "int",
        "float",
        "str",
        "bool",
        "float32",
    }
    assert DeviceValue("cpu:None") in values
    assert DeviceValue("cpu:None").device == "cpu"
    assert DtypeValue("torch.float64") in values
    assert MemoryFormatValue("channels_last") in values
    assert any(isinstance(call.outputs and call.outputs[0], DictValue) for call in part)


def test_collectives_keep_group_operation_and_peer(peer_dumps: Path) -> None:
    part = open_dump(peer_dumps / "msprobe-8.2.1/dist/L1_md5/npu").parts[0]
    everything = [
        value for call in part for value in (*(call.inputs or ()), *(call.kwargs or {}).values())
    ]
    assert GroupValue((0, 1), "77849d8c") in everything
    assert ReduceOpValue("RedOpType.SUM") in everything
    batch = part.call("Distributed.batch_isend_irecv.0.forward").inputs
    assert batch is not None and isinstance(batch[0], ListValue)
    first = batch[0].items[0]
    assert isinstance(first, PeerOpValue)
    assert (first.op, first.peer) == ("isend", 1)


def test_bare_nan_and_infinity_are_understood(tmp_path: Path) -> None:
    leaf = (
        '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], '
        '"Max": Infinity, "Min": -Infinity, "Mean": NaN, "Norm": NaN}'
    )
    write_dump(tmp_path, f'"Torch.log.0.forward": {{"input_args": [{leaf}]}}')
    (value,) = open_dump(tmp_path).parts[0].call("Torch.log.0.forward").inputs or ()
    assert isinstance(value, TensorValue)
    assert (value.max, value.min) == (np.inf, -np.inf)
    assert np.isnan(value.mean) and np.isnan(value.norm)


def test_gradients_of_parameters_are_named_as_the_older_tool_compares_them() -> None:
    part = open_dump(DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu").parts[0]
    call = part.call("Module.fc1.Linear.parameters_grad")
    assert [leaf.name for leaf in call.leaves()] == [
        "Module.fc1.Linear.parameters_grad.weight",
        "Module.fc1.Linear.parameters_grad.bias",
    ]


def test_rows_are_named_and_ordered_as_in_the_older_tools_result(peer_dumps: Path) -> None:
    """The names of all rows of the golden results, in their order, come from our records."""
    results = sorted(peer_dumps.glob("compare-8.2.1/*/*/compare_result_2*.csv"))
    if not results:
        pytest.skip("the golden results are not in the repository")
    checked = 0
    for result in results:
        paths = json.loads((result.parent / "compare.json").read_text())
        dump = peer_dumps / paths["npu_path"]
        # `cross`: 8.2.1 does not know the numbered gradients of 26.2.0.
        skipped = "colours" in result.name or "_dm" in result.parent.name
        if skipped or result.parent.parent.name == "cross" or not dump.exists():
            continue
        rows = [
            line.split(",")[0] for line in result.read_text().splitlines() if line.count(".") > 2
        ]
        names = [leaf.name for call in open_dump(dump) for leaf in call.leaves()]
        # A message may run over several lines of the table; only names are rows.
        assert [row for row in rows if row in set(names)] == names, result
        checked += 1
    assert checked >= 8


def test_stacks_and_parents_are_found() -> None:
    part = open_dump(DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu").parts[0]
    stack = part.stack("Functional.linear.0.forward")
    assert any(frame.path == "train.py" and frame.line > 0 for frame in stack)
    assert part.stack("Functional.linear.0.backward") == stack
    assert part.parent("Functional.linear.0.forward") == "Module.fc1.Linear.forward.0"
    assert part.parent("Module.fc1.Linear.forward.0") is None
    assert part.stack("no.such.name") == ()


def test_the_older_form_of_stack_json_is_read(tmp_path: Path) -> None:
    write_dump(tmp_path, '"Torch.a.0.forward": {}')
    frame = "File train.py, line 3, in f, \n a(x)"
    (tmp_path / "stack.json").write_text(json.dumps({"Torch.a.0.forward": [frame]}))
    (found,) = open_dump(tmp_path).parts[0].stack("Torch.a.0.forward")
    assert str(found) == frame


def test_legacy_stacks_and_origins_are_read() -> None:
    checker = open_dump(DATA / "peer_dumps/api_accuracy_checker/2023-11/statistics").parts[0]
    assert any(frame.path == "train.py" for frame in checker.stack("Functional.conv2d.0.forward"))
    ptdbg = open_dump(DATA / "peer_dumps/ptdbg_ascend/2024-10/module_all/npu").parts[0]
    assert any(frame.path == "train.py" for frame in ptdbg.stack("Module.conv.Conv2d.forward.0"))


def test_the_legacy_tools_finite_range_is_kept_beside_the_true_one(tmp_path: Path) -> None:
    leaf = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": 1.0,
        "Max_origin": float("inf"),
        "Min": 0.0,
        "Min_origin": 0.0,
    }
    entry = {"Torch.exp.0": {"args": [leaf], "kwargs": {}}}
    (tmp_path / "forward_info_1.json").write_text(json.dumps(entry))
    (tmp_path / "backward_info_1.json").write_text("{}")
    (value,) = open_dump(tmp_path).parts[0].call("Torch.exp.0.forward").inputs or ()
    assert isinstance(value, TensorValue)
    assert (value.max, value.finite_max) == (np.inf, 1.0)


def test_a_layout_other_than_the_usual_one_is_read_too(tmp_path: Path) -> None:
    source = DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu/step0/rank/dump.json"
    usual = list(open_dump(source))
    for number, options in enumerate(({}, {"indent": 4}, {"separators": (",", ":")})):
        copy = tmp_path / str(number) / "renamed.json"
        copy.parent.mkdir()
        copy.write_text(json.dumps(json.loads(source.read_text()), **options))
        assert list(open_dump(copy)) == usual


def test_a_structure_dump_names_its_calls() -> None:
    (part,) = open_dump(DATA / "peer_dumps/msprobe-8.2.1/structure/L0/npu").parts
    assert len(part) > 0
    assert all(call.inputs is None for call in part)
