"""DumpWriter: what is written reads back, and replaces what was there."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DATA
from dump_copy import copy_rank
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DictValue,
    DtypeValue,
    DumpInfo,
    EllipsisValue,
    Frame,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store import DumpWriter, TensorData, open_dump
from tensorprobe.store.writer import file_name_of, rank_folder

TENSOR = TensorValue("torch.float32", (2, 3), 1.5, -2.0, 0.25, 4.0, True, "0badf00d")
NUMBERS = TensorData(DTYPES["torch.float32"], np.arange(6, dtype=np.float32).reshape(2, 3))

numbers = st.none() | st.floats(allow_nan=False) | st.integers(-(2**60), 2**60) | st.booleans()
tensors = st.builds(
    TensorValue,
    st.sampled_from(sorted(DTYPES)),
    # No tensor has more elements than 64 bits can count.
    st.lists(st.integers(0, 2**15), max_size=4).map(tuple),
    numbers,
    numbers,
    numbers,
    numbers,
    st.none() | st.booleans(),
    st.none() | st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
    form=st.none() | st.text(max_size=20),
)
scalars = st.one_of(
    st.booleans().map(lambda v: ScalarValue("bool", v)),
    st.integers().map(lambda v: ScalarValue("int", v)),
    st.floats(allow_nan=False).map(lambda v: ScalarValue("float", v)),
    st.complex_numbers(allow_nan=False).map(lambda v: ScalarValue("complex", v)),
    st.text(max_size=20).map(lambda v: ScalarValue("str", v)),
)
whole = st.integers(0, 2**40)
other: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    scalars,
    tensors,
    st.builds(
        SliceValue, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers()
    ),
    st.just(EllipsisValue()),
    st.lists(st.integers(-1, 2**40), max_size=3).map(lambda dims: SizeValue(tuple(dims))),
    st.just(DtypeValue("torch.float64")),
    st.just(DeviceValue("cuda:0")),
    st.just(MemoryFormatValue("channels_last")),
    st.builds(GroupValue, st.lists(whole, max_size=3).map(tuple), st.just("77849d8c")),
    st.just(ReduceOpValue("RedOpType.SUM")),
    st.builds(PeerOpValue, st.just("isend"), whole, whole, st.just("a"), tensors),
    st.just(UnknownValue("MyClass")),
)
# A key named `type` with a text would be read as a leaf; real dicts hold leaves, not texts.
keys = st.text(min_size=1, max_size=8)
values = st.recursive(
    other,
    lambda inner: st.one_of(
        st.builds(ListValue, st.lists(inner, max_size=3).map(tuple), st.booleans()),
        st.dictionaries(keys, inner, max_size=3).map(lambda d: DictValue(tuple(d.items()))),
    ),
    max_leaves=6,
)
calls = st.builds(
    CallRecord,
    st.just("Torch.f.0.forward"),
    st.none() | st.lists(values, max_size=3).map(tuple),
    st.none() | st.dictionaries(keys, values, max_size=2),
    st.none() | st.lists(values, max_size=2).map(tuple),
    is_recompute=st.none() | st.booleans(),
)


@settings(max_examples=200)
@given(calls)
def test_any_call_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, call: CallRecord
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    with DumpWriter(folder, DumpInfo()) as writer:
        assert writer.write(call)
    dump = open_dump(folder)
    assert list(dump) == [call]
    assert dump.gaps == ()


@pytest.mark.parametrize(
    "call",
    [
        CallRecord(
            "Module.fc.Linear.forward.0", (TENSOR,), {}, (TENSOR,), {"weight": TENSOR}, None, False
        ),
        CallRecord("Module.fc.Linear.backward.0", inputs=(TENSOR,), outputs=()),
        CallRecord("Module.fc.Linear.parameters_grad", parameters={"weight": TENSOR, "bias": None}),
        CallRecord("Functional.linear.0.backward", inputs=(TENSOR,), outputs=(None, TENSOR)),
    ],
)
def test_every_kind_of_call_reads_back(tmp_path: Path, call: CallRecord) -> None:
    with DumpWriter(tmp_path, DumpInfo(level="mix")) as writer:
        assert writer.write(call)
    assert list(open_dump(tmp_path)) == [call]


def test_saved_values_go_into_debug_json(tmp_path: Path) -> None:
    call = CallRecord("x.0.debug", saved=(DictValue((("a", TENSOR), ("b", ListValue((None,))))),))
    with DumpWriter(tmp_path, DumpInfo(level="debug")) as writer:
        assert writer.write(call)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["debug.json"]
    assert list(open_dump(tmp_path)) == [call]


def test_the_dump_says_who_wrote_it_and_where_it_ran(tmp_path: Path) -> None:
    info = DumpInfo(3, 1, None, "tensor", "L1", torch_version="2.13.0", devices=("cuda:0",))
    with DumpWriter(rank_folder(tmp_path, step=1, rank=3), info):
        pass
    found = open_dump(tmp_path).parts[0].info
    assert (found.rank, found.step, found.task, found.level) == (3, 1, "tensor", "L1")
    assert (found.tool, found.torch_version, found.devices) == (
        "tensorprobe",
        "2.13.0",
        ("cuda:0",),
    )
    assert found.tool_version is not None and found.complete


def test_the_files_are_laid_out_as_the_older_tools_read_them(tmp_path: Path) -> None:
    frames = (Frame("train.py", 3, "forward", "a(x)"),)
    with DumpWriter(tmp_path, DumpInfo(task="tensor", level="mix")) as writer:
        name = writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS)
        assert name == "Torch.a.0.forward.input.0.pt"
        writer.write(CallRecord("Torch.a.0.forward"), stack=frames, parent="Module.m.M.forward.0")
        writer.write(CallRecord("Torch.a.1.forward"), stack=frames)
    assert json.loads((tmp_path / "stack.json").read_text()) == {
        "0": [["Torch.a.0.forward", "Torch.a.1.forward"], [str(frames[0])]]
    }
    assert json.loads((tmp_path / "construct.json").read_text()) == {
        "Torch.a.0.forward": "Module.m.M.forward.0",
        "Torch.a.1.forward": None,
    }
    dump = json.loads((tmp_path / "dump.json").read_text())
    assert list(dump) == ["task", "level", "framework", "dump_data_dir", "tensorprobe", "data"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "construct.json",
        "dump.json",
        "dump_tensor_data",
        "stack.json",
    ]


def test_at_level_l1_the_tree_is_empty_as_in_the_older_tools(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(level="L1")) as writer:
        writer.write(CallRecord("Torch.a.0.forward"))
    assert (tmp_path / "construct.json").read_text() == "{}"


def test_a_structure_dump_holds_names_alone(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(task="structure", level="mix")) as writer:
        writer.write(
            CallRecord("Torch.a.0.forward", inputs=(TENSOR,)), parent="Module.m.M.forward.0"
        )
    assert json.loads((tmp_path / "dump.json").read_text())["data"] == {}
    assert list(open_dump(tmp_path)) == [CallRecord("Torch.a.0.forward")]


def test_a_copied_peer_dump_is_the_same_dump(tmp_path: Path) -> None:
    for source in (
        "mlp/L1_tensor/npu",
        "lowp/L1_tensor/npu",
        "edge/mix_statistics/npu",
        "debug_save/tensor/npu",
    ):
        theirs = open_dump(DATA / "peer_dumps/msprobe-8.2.1" / source)
        copy = tmp_path / source.replace("/", "_")
        for part in theirs.parts:
            copy_rank(part, copy / part.label)
        ours = open_dump(copy)
        assert repr(list(ours)) == repr(list(theirs))
        for mine, original in zip(ours.parts, theirs.parts, strict=True):
            for name in original.names:
                assert mine.stack(name) == original.stack(name)
                assert mine.parent(name) == original.parent(name)
            for call in original:
                for leaf in call.leaves():
                    if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                        left, right = mine.load(leaf.value), original.load(leaf.value)
                        assert left.array.tobytes() == right.array.tobytes()
                        assert left.dtype == right.dtype


def test_a_second_dump_replaces_the_first(tmp_path: Path) -> None:
    for number in range(2):
        with DumpWriter(tmp_path, DumpInfo(task="tensor")) as writer:
            writer.save_tensor(f"Torch.a.{number}.forward.input.0", NUMBERS)
            writer.write(CallRecord(f"Torch.a.{number}.forward"))
            (tmp_path / "notes.txt").write_text("the user's own")
    assert [call.name for call in open_dump(tmp_path)] == ["Torch.a.1.forward"]
    assert [path.name for path in (tmp_path / "dump_tensor_data").iterdir()] == [
        "Torch.a.1.forward.input.0.pt"
    ]
    assert (tmp_path / "notes.txt").exists()


def test_final_files_appear_only_when_the_dump_is_closed(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, DumpInfo(level="mix"))
    writer.write(CallRecord("Torch.a.0.forward"), stack=(Frame("t.py", 1, "f", "a"),), parent="M")
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".json"]
    running = open_dump(tmp_path)
    assert [call.name for call in running] == ["Torch.a.0.forward"]
    assert (
        running.parts[0].stack("Torch.a.0.forward")
        and running.parts[0].parent("Torch.a.0.forward") == "M"
    )
    assert "the dump was not closed; 1 calls are there" in str(running.gaps[0])
    writer.close()
    writer.close()
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]
    assert open_dump(tmp_path).gaps == ()


def test_a_path_to_the_unfinished_json_opens_the_journal(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, DumpInfo())
    writer.write(CallRecord("Torch.a.0.forward"))
    assert len(open_dump(tmp_path / "dump.json")) == 1
    writer.close()


def test_tensors_seen_before_are_hard_links(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(task="tensor")) as writer:
        first = writer.save_tensor("Torch.a.0.forward.output.0", NUMBERS)
        assert first is not None
        second = writer.link_tensor("Torch.b.0.forward.input.0", first)
    assert second == "Torch.b.0.forward.input.0.pt"
    data = tmp_path / "dump_tensor_data"
    assert (data / first).stat().st_ino == (data / second).stat().st_ino


def test_npy_is_written_on_request_and_pt_where_npy_cannot_say_it(tmp_path: Path) -> None:
    half = TensorData(DTYPES["torch.bfloat16"], np.zeros(3, np.uint16))
    with DumpWriter(tmp_path, DumpInfo(task="tensor"), file_format="npy") as writer:
        assert (
            writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS)
            == "Torch.a.0.forward.input.0.npy"
        )
        assert (
            writer.save_tensor("Torch.a.0.forward.input.1", half) == "Torch.a.0.forward.input.1.pt"
        )
    loaded = np.load(tmp_path / "dump_tensor_data" / "Torch.a.0.forward.input.0.npy")
    assert np.array_equal(loaded, NUMBERS.array)


@pytest.mark.parametrize(
    "name", ["a/b.0.debug", "x" * 300 + ".0.debug", "é" * 200, "..", "a\0b", "äöü 空 'q\".0.debug"]
)
def test_any_name_can_be_a_file(tmp_path: Path, name: str) -> None:
    with DumpWriter(tmp_path, DumpInfo(task="tensor", level="debug")) as writer:
        data_name = writer.save_tensor(name, NUMBERS)
        assert data_name is not None
        value = TensorValue("torch.float32", (2, 3), data_name=data_name)
        assert writer.write(CallRecord(f"{name}.0.debug", saved=(value,)))
    (part,) = open_dump(tmp_path).parts
    assert part.gaps == ()
    assert np.array_equal(part.load(value).array, NUMBERS.array)


def test_two_names_that_read_the_same_as_files_are_two_files() -> None:
    assert file_name_of("a/b", ".pt") != file_name_of("a_b", ".pt")
    assert len({file_name_of("x" * n, ".pt") for n in range(260, 270)}) == 10


def test_folders_with_any_legal_character_work(tmp_path: Path) -> None:
    folder = tmp_path / "a++ b" / "ü#%'\"" / "[x]*?"
    with DumpWriter(folder, DumpInfo(task="tensor")) as writer:
        name = writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS)
        writer.write(
            CallRecord("Torch.a.0.forward", (TensorValue("torch.float32", (2, 3), data_name=name),))
        )
    assert open_dump(folder).gaps == ()


def test_a_name_written_twice_is_told_and_kept_once(tmp_path: Path) -> None:
    told: list[str] = []
    with DumpWriter(tmp_path, DumpInfo(), on_trouble=told.append) as writer:
        assert writer.write(CallRecord("Torch.a.0.forward", inputs=(None,)))
        assert not writer.write(CallRecord("Torch.a.0.forward"))
        assert not writer.write(CallRecord("no name of a call"))
    assert len(told) == 1 and "came a second time" in told[0]
    dump = open_dump(tmp_path)
    assert list(dump) == [CallRecord("Torch.a.0.forward", inputs=(None,))]
    assert len(dump.gaps) == 2 == writer.lost


def test_a_record_that_json_cannot_hold_is_left_out_and_named(tmp_path: Path) -> None:
    told: list[str] = []
    with DumpWriter(tmp_path, DumpInfo(level="mix"), on_trouble=told.append) as writer:
        numpy_numbers = TensorValue("torch.float32", (2,), max=np.float32(3), min=np.float64(1))
        assert writer.write(CallRecord("Torch.a.0.forward", (numpy_numbers,)))
        assert not writer.write(CallRecord("Torch.b.0.forward", (ScalarValue("int", 10**5000),)))
        assert not writer.write(CallRecord("Torch.c.0.forward", saved=(None,)))
        assert writer.write(CallRecord("Torch.b.0.forward"), parent="M")
    assert len(told) == 1
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == ["Torch.a.0.forward", "Torch.b.0.forward"]
    (value,) = dump.parts[0].call("Torch.a.0.forward").inputs or ()
    assert isinstance(value, TensorValue) and value.max == 3.0
    assert len(dump.gaps) == 2
    # Nothing of a refused record reached the companions, so its second try is no duplicate.
    tree = (tmp_path / "construct.json").read_text()
    assert tree.count("Torch.b.0.forward") == 1


def test_the_data_of_one_name_is_written_once(tmp_path: Path) -> None:
    name = "Torch.a.0.forward.input.0"
    other = TensorData(DTYPES["torch.float32"], np.full(3, 2, np.float32))
    with DumpWriter(tmp_path, DumpInfo(task="tensor"), on_trouble=lambda _: None) as writer:
        saved = writer.save_tensor(name, NUMBERS)
        assert saved is not None
        assert writer.link_tensor(name, saved) == saved
        assert writer.save_tensor(name, other) is None
        assert writer.link_tensor("Torch.a.0.forward.input.1", saved)
        assert writer.link_tensor("Torch.a.0.forward.input.1", saved) is None
    value = TensorValue("torch.float32", (2, 3), data_name=saved)
    assert np.array_equal(open_dump(tmp_path).parts[0].load(value).array, NUMBERS.array)
    assert len(open_dump(tmp_path).gaps) == 2


def test_rank_and_step_are_known_whatever_the_folder_is_called(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "renamed", DumpInfo(rank=3, step=5)):
        pass
    info = open_dump(tmp_path / "renamed").parts[0].info
    assert (info.rank, info.step) == (3, 5)


def test_an_old_writer_does_not_publish_a_new_ones_files(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    old = DumpWriter(folder, DumpInfo())
    old.write(CallRecord("Torch.old.0.forward"))
    shutil.rmtree(folder)
    new = DumpWriter(folder, DumpInfo())
    new.write(CallRecord("Torch.new.0.forward"))
    old.close()
    new.write(CallRecord("Torch.new.1.forward"))
    new.close()
    assert [call.name for call in open_dump(folder)] == [
        "Torch.new.0.forward",
        "Torch.new.1.forward",
    ]


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(level="mix")) as writer:

        def work(thread: int) -> None:
            for number in range(200):
                writer.write(
                    CallRecord(f"Torch.a{thread}.{number}.forward", inputs=(TENSOR,)), parent="M"
                )

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    dump = open_dump(tmp_path)
    assert len(list(dump)) == 800 and dump.gaps == ()


def test_calls_written_together_are_those_written_alone(tmp_path: Path) -> None:
    calls = [CallRecord(f"Torch.a.{n}.forward", inputs=(TENSOR,)) for n in range(5)]
    stack = (Frame("train.py", 3, "main", "a()"),)
    with DumpWriter(tmp_path / "alone", DumpInfo(level="mix")) as alone:
        for call in calls:
            alone.write(call, stack=stack, parent="Module.m.M.forward.0")
    with DumpWriter(tmp_path / "together", DumpInfo(level="mix")) as together:
        together.write_all((call, stack, "Module.m.M.forward.0") for call in calls[:3])
        together.write_all((call, stack, "Module.m.M.forward.0") for call in calls[3:])
    for name in ("dump.json", "stack.json", "construct.json"):
        one, other = ((tmp_path / where / name).read_text() for where in ("alone", "together"))
        assert one == other
