"""open_dump: what is missing or wrong is named, and costs no more than itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from opened import tensors_of, write_dump

from conftest import DATA
from tensorprobe.errors import DumpError, NewerFormatError
from tensorprobe.store import open_dump


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="nowhere does not exist; check the path"):
        open_dump(tmp_path / "nowhere")


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"holds no dump: no dump\.json"):
        open_dump(tmp_path)


def test_a_folder_of_several_dumps_names_them(tmp_path: Path) -> None:
    write_dump(tmp_path / "npu" / "step0" / "rank", '"Torch.a.0.forward": {}')
    with pytest.raises(DumpError, match="holds one: npu; give that"):
        open_dump(tmp_path)
    write_dump(tmp_path / "bench" / "step0" / "rank", '"Torch.a.0.forward": {}')
    with pytest.raises(DumpError, match="holds several: bench, npu; give one of them"):
        open_dump(tmp_path)


def test_a_broken_rank_does_not_hide_the_others(tmp_path: Path) -> None:
    write_dump(tmp_path / "step0" / "rank0", '"Torch.a.0.forward": {}')
    (tmp_path / "step0" / "rank1").mkdir()
    (tmp_path / "step0" / "rank1" / "dump.json").write_text("no json")
    (tmp_path / "step0" / "rank2").mkdir()
    dump = open_dump(tmp_path)
    assert [part.label for part in dump.parts] == ["step0/rank0"]
    problems = [str(gap) for gap in dump.gaps]
    assert any("rank1" in problem and "not valid JSON" in problem for problem in problems)
    assert any("rank2" in problem and "holds no dump.json" in problem for problem in problems)


def test_a_cut_dump_gives_all_whole_calls_and_names_the_lost_one(tmp_path: Path) -> None:
    source = DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu/step0/rank/dump.json"
    text = source.read_text()
    whole = list(open_dump(source))
    place = text.index('"Functional.relu.0.backward"') + 60
    (tmp_path / "dump.json").write_text(text[:place])
    part = open_dump(tmp_path).parts[0]
    names = [call.name for call in whole]
    assert list(part) == whole[: names.index("Functional.relu.0.backward")]
    assert not part.info.complete
    assert any("Functional.relu.0.backward, is incomplete" in str(gap) for gap in part.gaps)


def test_a_cut_dump_of_another_layout_gives_the_calls_before_the_cut(tmp_path: Path) -> None:
    entries = {f"Torch.a.{n}.forward": {"input_args": [None]} for n in range(10)}
    text = json.dumps({"task": "statistics", "level": "L1", "data": entries})
    (tmp_path / "dump.json").write_text(text[: text.index("Torch.a.7") + 25])
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == [f"Torch.a.{n}.forward" for n in range(7)]
    assert "7 calls before Torch.a.7.forward are read" in str(dump.gaps[0])


def test_one_damaged_entry_costs_that_entry_alone(tmp_path: Path) -> None:
    write_dump(
        tmp_path,
        '"Torch.a.0.forward": {"input_args": []},\n  "Torch.b.0.forward": {"input_args": ]},\n'
        '  "Torch.c.0.forward": {"input_args": []}',
    )
    part = open_dump(tmp_path).parts[0]
    assert [call.name for call in part] == ["Torch.a.0.forward", "Torch.c.0.forward"]
    assert "Torch.b.0.forward: not valid JSON" in str(part.gaps[0])
    with pytest.raises(DumpError, match=r"dump.json: Torch.b.0.forward: not valid JSON"):
        part.call("Torch.b.0.forward")


@pytest.mark.parametrize(
    ("leaf", "problem"),
    [
        ('{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [-1]}', "the shape [-1]"),
        ('{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [[1]]}', "the shape [[1]]"),
        ('{"type": "torch.Tensor", "dtype": 3, "shape": []}', "the dtype 3"),
        ('{"type": "torch.Tensor", "dtype": "t", "shape": [], "Max": "big"}', "the Max 'big'"),
        ('{"type": "torch.Tensor", "dtype": "t", "shape": [], "md5": 5}', "the md5 5"),
        ('{"type": "torch.Tensor", "dtype": "t", "shape": [], "data_name": 5}', "the data_name 5"),
        (
            '{"type": "torch.Tensor", "dtype": "t", "shape": [], "requires_grad": 5}',
            "requires_grad 5",
        ),
    ],
)
def test_a_senseless_tensor_is_reported_and_the_rest_kept(
    tmp_path: Path, leaf: str, problem: str
) -> None:
    write_dump(tmp_path, f'"Torch.a.0.forward": {{"input_args": [{leaf}], "output": [null]}}')
    part = open_dump(tmp_path).parts[0]
    assert part.call("Torch.a.0.forward").outputs == (None,)
    assert problem in str(part.gaps[0])


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("[1]", "the entry is list, wanted an object"),
        ('{"input_args": 5}', "input_args is int, wanted a list"),
        ('{"input_kwargs": []}', "input_kwargs is list, wanted an object"),
    ],
)
def test_a_senseless_entry_is_reported(tmp_path: Path, entry: str, problem: str) -> None:
    write_dump(tmp_path, f'"Torch.a.0.forward": {entry}')
    assert problem in str(open_dump(tmp_path).gaps[0])


def test_an_unknown_call_gets_a_suggestion() -> None:
    part = open_dump(DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu").parts[0]
    with pytest.raises(DumpError, match=r"did you mean Functional\.linear\.0\.forward\?"):
        part.call("Functional.linaer.0.forward")
    with pytest.raises(DumpError, match="`tensorprobe show` lists the calls"):
        part.call("???")


def test_missing_and_empty_data_files_are_named(tmp_path: Path) -> None:
    rank = tmp_path / "rank"
    shutil.copytree(DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank", rank)
    data = rank / "dump_tensor_data"
    (data / "Functional.linear.0.forward.input.0.pt").unlink()
    (data / "Functional.linear.0.forward.input.1.pt").write_bytes(b"")
    problems = [gap.problem for gap in open_dump(rank).gaps]
    call = "Functional.linear.0.forward"
    assert problems == [
        f"{call}: the data file {call}.input.0.pt is missing",
        f"{call}: the data file {call}.input.1.pt is empty",
    ]


def test_a_tensor_without_data_says_so() -> None:
    part = open_dump(DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu").parts[0]
    with pytest.raises(DumpError, match="statistics only, no data file"):
        part.load(tensors_of(part)[0])


def test_broken_companions_are_gaps(tmp_path: Path) -> None:
    write_dump(tmp_path, '"Torch.a.0.forward": {}')
    (tmp_path / "stack.json").write_text('{"0": 5}')
    (tmp_path / "construct.json").write_text('{"a": 5}')
    part = open_dump(tmp_path).parts[0]
    problems = " ".join(str(gap) for gap in part.gaps)
    assert "the stacks cannot be read" in problems and "the module tree cannot be read" in problems
    assert part.stack("Torch.a.0.forward") == ()
    assert part.parent("Torch.a.0.forward") is None


def test_a_dump_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    write_dump(
        tmp_path,
        '"Torch.a.0.forward": {}',
        top='\n "tensorprobe": {"format": 99, "version": "9.0"},',
    )
    with pytest.raises(
        NewerFormatError, match=r"format 99 of tensorprobe 9\.0.*upgrade tensorprobe"
    ):
        open_dump(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "5", '{"a": 1}', '{"data": []}', "\0\0\0", "{"])
def test_a_file_that_is_no_dump_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(DumpError, match=r"dump\.json"):
        open_dump(path)


def test_a_value_nested_too_deeply_is_one_gap(tmp_path: Path) -> None:
    # With half of a surrogate pair in it, jiter, which has a limit of its own, is not used.
    deep = "[" * 600 + '"\\ud83d"' + "]" * 600
    write_dump(tmp_path, f'"Torch.a.0.forward": {{"input_args": [{deep}], "output": [null]}}')
    part = open_dump(tmp_path).parts[0]
    assert part.call("Torch.a.0.forward").outputs == (None,)
    assert "nested more than 200 levels deep" in str(part.gaps[0])


def test_hostile_texts_cost_no_more_than_their_length(tmp_path: Path) -> None:
    """Patterns that try every place against every other would take minutes here."""
    write_dump(tmp_path, '"Torch.a.0.forward": {},\n  "' + "x\\\\" * 2_000_000)
    (tmp_path / "stack.json").write_text(
        json.dumps({"Torch.a.0.forward": ["File " + ", line 1, in " * 100_000]})
    )
    part = open_dump(tmp_path).parts[0]
    assert len(part.stack("Torch.a.0.forward")) == 1


def test_an_odd_key_of_the_legacy_checker_costs_itself_alone(tmp_path: Path) -> None:
    entry = {"args": [], "kwargs": {}}
    keys = ["Torch*a*0", "odd", "Torch*b*0"]
    (tmp_path / "forward_info_1.json").write_text(json.dumps(dict.fromkeys(keys, entry)))
    (tmp_path / "backward_info_1.json").write_text("{}")
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == ["Torch.a.0.forward", "Torch.b.0.forward"]
    assert "forward_info_1.json: not a key of api_accuracy_checker: 'odd'" in str(dump.gaps[0])


def test_a_data_file_that_is_cut_short_is_a_gap(tmp_path: Path) -> None:
    rank = tmp_path / "rank"
    shutil.copytree(DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank", rank)
    path = rank / "dump_tensor_data" / "Functional.linear.0.forward.input.1.pt"
    path.write_bytes(path.read_bytes()[:100])
    assert "is cut short: 100 bytes, 128 needed" in str(open_dump(rank).gaps[0])


def test_a_problem_is_told_of_the_call_that_has_it(tmp_path: Path) -> None:
    bad = '{"type": "torch.Tensor", "dtype": "t", "shape": [], "Max": "big"}'
    write_dump(
        tmp_path, f'"Torch.a.0.forward": {{}},\n  "Torch.b.0.forward": {{"input_args": [{bad}]}}'
    )
    part = open_dump(tmp_path).parts[0]
    part.call("Torch.b.0.forward")
    assert len(list(part)) == 2
    assert [gap.problem.partition(":")[0] for gap in part.gaps] == ["Torch.b.0.forward"]


def test_a_dump_without_calls_is_still_a_dump(tmp_path: Path) -> None:
    write_dump(tmp_path, "")
    dump = open_dump(tmp_path)
    assert dump and dump.parts[0] and len(dump) == 0


def test_a_real_pickle_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "dump.pkl"
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'touch " + os.fsencode(tmp_path) + b"/ran'\ntR.")
    with pytest.raises(DumpError, match="a real pickle is never opened"):
        open_dump(path)
    assert not (tmp_path / "ran").exists()


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump.json")
    with pytest.raises(DumpError, match="no regular file"):
        open_dump(tmp_path)
