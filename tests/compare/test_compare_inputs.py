"""What is to be compared: compare.json and its fields, stacks and data elsewhere, empty paths."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_dumps import call, tensor, write_data, write_dump

from conftest import DATA
from tensorprobe.compare import compare
from tensorprobe.errors import ConfigError
from tensorprobe.records import Frame

RELU = "Torch.relu.0.forward"
MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp"


def test_a_compare_json_may_have_the_comments_of_the_manual(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    config = tmp_path / "compare.json"
    config.write_text(
        f'{{\n"npu_path": "{dump}",  # 需填写到step层级（rank的上一层级）\n'
        f'"bench_path": "{dump}",  # "x"\n"is_print_compare_log": false\n}}\n'
    )
    assert compare(config, output=tmp_path / "o").parts[0].tally.passed == 1
    with pytest.raises(ConfigError, match=r"compare\.json, which names both runs; give it alone"):
        compare(config, dump, tmp_path / "o")


def test_an_empty_path_is_not_the_folder_that_we_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    monkeypatch.chdir(dump)
    assert compare(".", dump, tmp_path / "o").parts[0].tally.passed == 1
    with pytest.raises(ConfigError, match="the path of a dump is empty"):
        compare("", dump, tmp_path / "o")
    with pytest.raises(ConfigError, match="the path of a dump is empty"):
        compare(dump, "", tmp_path / "o")


def test_a_compare_json_names_both(tmp_path: Path) -> None:
    write_dump(tmp_path / "npu", [call(RELU, [tensor(1)])], stack=[Frame("t.py", 1, "f", "x")])
    shutil.copytree(tmp_path / "npu", tmp_path / "bench")
    dump = next((tmp_path / "npu").rglob("dump.json")).relative_to(tmp_path)
    config = tmp_path / "compare.json"
    fields = {"npu_path": str(dump), "bench_path": str(dump).replace("npu", "bench")}
    config.write_text(json.dumps(fields))
    # Paths are meant from beside the file, where they are not from here.
    result = compare(config, output=tmp_path / "o", formats=["json"])
    assert "NPU_Stack_Info" in json.loads(result.files[0].read_text())[0]
    stack = str(dump).replace("dump.json", "stack.json")
    config.write_text(json.dumps(fields | {"stack_path": stack}))
    result = compare(config, output=tmp_path / "o2", formats=["json"])
    assert "NPU_Stack_Info" not in json.loads(result.files[0].read_text())[0]
    result = compare(config, output=tmp_path / "o3", formats=["json"], stack=True)
    assert "NPU_Stack_Info" in json.loads(result.files[0].read_text())[0]


def test_the_fields_of_a_compare_json_may_be_a_dict(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "npu", [call(RELU, [tensor(1)])])
    fields = {"npu_json_path": str(dump), "bench_json_path": dump}
    assert compare(fields, output=tmp_path / "o").parts[0].tally.passed == 1
    with pytest.raises(
        ConfigError,
        match=r"the inputs: bench_path \(or bench_json_path, bench_pkl_path\) is missing",
    ):
        compare({"npu_json_path": str(dump)}, output=tmp_path / "o")
    with pytest.raises(ConfigError, match="leave the reference out"):
        compare(fields, dump, tmp_path / "o")


def test_a_named_stack_file_is_the_one_that_is_read(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])], stack=[Frame("t.py", 1, "f", "x")])
    file = next(dump.rglob("dump.json"))
    stack = tmp_path / "elsewhere.json"
    stack.write_text(json.dumps({RELU: ["File other.py, line 7, in g, \n y"]}))
    fields = {"npu_path": file, "bench_path": file, "stack_path": stack}
    result = compare(fields, output=tmp_path / "o", formats=["json"], stack=True)
    assert "other.py" in json.loads(result.files[0].read_text())[0]["NPU_Stack_Info"]
    # Of a whole folder the stacks are found and shown by themselves.
    folders = {"npu_path": dump, "bench_path": dump}
    for asked in (None, True):
        result = compare(folders, output=tmp_path / "o2", formats=["json"], stack=asked)
        assert "t.py" in json.loads(result.files[0].read_text())[0]["NPU_Stack_Info"]


def test_stacks_that_nobody_recorded_have_no_column_also_if_asked_for(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    fields = {"npu_path": dump, "bench_path": dump}
    result = compare(fields, output=tmp_path / "o", formats=["json"], stack=True)
    assert "NPU_Stack_Info" not in json.loads(result.files[0].read_text())[0]


def test_a_stack_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    for given, what in ((tmp_path / "no.json", "does not exist"), (tmp_path, "is no file")):
        fields = {"npu_path": dump, "bench_path": dump, "stack_path": given}
        with pytest.raises(ConfigError, match=f"{what}; check it, or leave it out"):
            compare(fields, output=tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_data_that_lie_elsewhere_than_beside_their_dump_are_refused(tmp_path: Path) -> None:
    array = np.ones(3, np.float32)
    dump = write_data(tmp_path / "a", {RELU: {"input": [array]}})
    file = next(dump.rglob("dump.json"))
    fields = {"npu_path": file, "bench_path": file}
    beside = {"npu_dump_data_dir": str(file.parent / "dump_tensor_data")}
    assert compare(fields | beside, output=tmp_path / "o").parts[0].tally.passed == 1
    # The same folder by another name.
    (tmp_path / "link").symlink_to(file.parent)
    linked = {"bench_dump_data_dir": str(tmp_path / "link/dump_tensor_data")}
    assert compare(fields | linked, output=tmp_path / "o").parts[0].tally.passed == 1
    # Below the dump, and yet not what is read.
    (file.parent / "moved").mkdir()
    for other in (tmp_path, file.parent / "moved"):
        with pytest.raises(ConfigError) as refused:
            compare(fields | {"npu_dump_data_dir": str(other)}, output=tmp_path / "o")
        assert f"npu_dump_data_dir is {other}, but the tensors of {file} are" in str(refused.value)
        assert f"read from {file.parent}/dump_tensor_data; move" in str(refused.value)
    missing = {"bench_dump_data_dir": str(tmp_path / "nowhere")}
    with pytest.raises(ConfigError, match=r"nowhere, which does not exist; leave bench_dump_data_"):
        compare(fields | missing, output=tmp_path / "o")
    a_file = {"bench_dump_data_dir": str(file)}
    with pytest.raises(ConfigError, match=r"dump\.json, which is no folder"):
        compare(fields | a_file, output=tmp_path / "o")


def test_a_folder_of_data_may_be_named_for_a_whole_step(tmp_path: Path) -> None:
    dump = write_data(tmp_path / "a", {RELU: {"input": [np.ones(3, np.float32)]}})
    data = next(dump.rglob("dump_tensor_data"))
    fields = {"npu_path": dump, "bench_path": dump, "npu_dump_data_dir": str(data)}
    assert compare(fields, output=tmp_path / "o").parts[0].tally.passed == 1
    with pytest.raises(ConfigError, match=r"npu_dump_data_dir is .* are read from"):
        compare(fields | {"npu_dump_data_dir": str(data.parent)}, output=tmp_path / "o")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "wanted an object with npu_path and bench_path"),
        ("{}", "npu_path (or npu_json_path, npu_pkl_path) is missing"),
        ('{"npu_path": "a"}', "bench_path (or bench_json_path, bench_pkl_path) is missing"),
        ('{"npu_path": 3, "bench_path": "b"}', "npu_path is 3, wanted a path"),
        ('{"npu_path": "a", "bench_path": "b", "x": 1}', "the field 'x' is not known"),
        ('{"npu_path": "a", "bench_path": "b", "is_print_compare_log": 1}', "wanted true or"),
        ("{", "ends too early"),
    ],
)
def test_a_bad_compare_json_is_refused_in_one_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    config = tmp_path / "compare.json"
    config.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        compare(config, output=tmp_path / "o")
    assert "compare.json" in str(caught.value) and "\n" not in str(caught.value)
