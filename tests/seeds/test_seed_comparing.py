"""What the seeds show of the offline comparison works as it is written."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import openpyxl
import pytest
from script_runs import Ended, run_script, run_shell
from seed_dumps import lay_out_dumps, lay_out_saved_values
from seed_table import block

from conftest import DATA
from msprobe.pytorch import compare, compare_distributed
from tensorprobe import open_dump

ONE_RANK, MANY_RANKS = "004-13", "004-14"
ONE_RANK_SAVED, MANY_RANKS_SAVED = "004-22", "004-23"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    lay_out_dumps(tmp_path)
    return tmp_path


def write(key: str, file: Path) -> None:
    file.write_text(block(key).code, encoding="utf-8")


def run_command(key: str, compare_json: str, folder: Path) -> list[str]:
    """Run a command of the seed on a compare.json of the seed; returns the files that it made."""
    write(compare_json, folder / "compare.json")
    return files_of(run_shell(block(key).code, folder), folder)


def files_of(ended: Ended, folder: Path) -> list[str]:
    assert (ended.code, ended.err) == (0, ""), ended
    return sorted(re.sub(r"\d{14,}", "{timestamp}", file.name) for file in folder.glob("output/*"))


def rows_of(folder: Path, file: str = "compare_result_*.xlsx") -> list[dict[str, object]]:
    (found,) = folder.glob(f"output/{file}")
    sheet = openpyxl.load_workbook(found).worksheets[0]
    titles, *rows = sheet.iter_rows(values_only=True)
    return [dict(zip(map(str, titles), row, strict=True)) for row in rows]


@pytest.mark.parametrize("key", ["004-1", "004-2"])
def test_the_command_writes_the_table_with_stacks_and_the_advice(key: str, dumps: Path) -> None:
    files = run_command(key, ONE_RANK, dumps)
    assert files == ["advisor_{timestamp}.txt", "compare_result_{timestamp}.xlsx"]
    rows = rows_of(dumps)
    assert "NPU_Stack_Info" in rows[0]
    reached = {row["NPU Name"]: row["Accuracy Reached or Not"] for row in rows}
    assert reached["Functional.max_pool2d.0.forward.output.0"] == "Yes"
    assert reached["Functional.linear.0.forward.output.0"] == "No"
    (advice,) = dumps.glob("output/advisor_*.txt")
    assert "Functional.linear.0.forward" in advice.read_text()


def test_a_mapping_of_the_seed_pairs_by_name(dumps: Path) -> None:
    """The names of 004-16 are those of a fused operator and of a module in a module."""
    write("004-16", dumps / "data_mapping.yaml")
    assert "compare_result_{timestamp}.xlsx" in run_command("004-3", ONE_RANK, dumps)
    pairs = {row["NPU Name"]: row["Bench Name"] for row in rows_of(dumps)}
    for line in block("004-16").code.splitlines():
        if not line.startswith("#"):
            ours, theirs = line.split(": ")
            assert pairs[ours] == theirs


def test_a_mapping_in_the_form_of_the_seed_pairs_other_names(dumps: Path) -> None:
    write("004-15", dumps / "data_mapping.yaml")
    run_command("004-3", ONE_RANK, dumps)
    pairs = {row["NPU Name"]: row["Bench Name"] for row in rows_of(dumps)}
    lines = [line for line in block("004-15").code.splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    for line in lines:
        ours, theirs = line.split(": ")
        assert ours != theirs and pairs[ours] == theirs


def test_single_values_are_compared(tmp_path: Path) -> None:
    lay_out_saved_values(tmp_path)
    files = run_command("004-4", ONE_RANK_SAVED, tmp_path)
    assert "debug_compare_result_{timestamp}.xlsx" in files
    errors = {row["NPU Name"]: row["MaxAbsErr"] for row in rows_of(tmp_path, "debug_*.xlsx")}
    assert errors["attention.0.debug.scores"] == 5.0


def test_single_values_of_many_ranks_are_compared(tmp_path: Path) -> None:
    lay_out_saved_values(tmp_path)
    files = run_command("004-4", MANY_RANKS_SAVED, tmp_path)
    tables = [file for file in files if file.endswith(".xlsx")]
    assert tables == [f"debug_compare_result_rank{rank}_{{timestamp}}.xlsx" for rank in (0, 1)]


def test_many_ranks_are_compared_by_a_file_with_comments(dumps: Path) -> None:
    files = run_command("004-1", MANY_RANKS, dumps)
    tables = [file for file in files if file.endswith(".xlsx")]
    assert tables == [f"compare_result_rank{rank}_{{timestamp}}.xlsx" for rank in (0, 1)]


def test_the_first_difference_is_told_for_each_rank(dumps: Path) -> None:
    """The files are those of the tree in 004-6."""
    files = run_command("004-5", MANY_RANKS, dumps)
    listed = re.findall(r"[\w{}]+\.json", block("004-6").code)
    assert files == sorted(listed) and len(files) == 3
    (analysis,) = dumps.glob("output/diff_analyze_*.json")
    for ranks in json.loads(analysis.read_text()).values():
        assert "linear" in ranks[0]["op_name"]


@pytest.mark.parametrize("key", ["000-5", "004-8"])
def test_the_script_that_calls_compare(key: str, dumps: Path) -> None:
    ended = run_script(block(key).code, dumps, name="compare.py")
    assert ended.code == 0, ended
    assert not re.search("turn on the stack_mode", ended.out + ended.err)
    rows = rows_of(dumps)
    assert "NPU_Stack_Info" in rows[0]
    assert any(row["Accuracy Reached or Not"] == "No" for row in rows)


def test_without_the_stack_mode_there_is_a_table_without_stacks(dumps: Path) -> None:
    code = block("004-8").code.replace(", stack_mode=True", "")
    ended = run_script(code, dumps, name="compare.py")
    assert ended.code == 0, ended
    assert "NPU_Stack_Info" not in rows_of(dumps)[0]


@pytest.mark.parametrize("key", ["004-8", "004-10"])
def test_the_functions_say_until_when_they_were_meant_to_be_there(key: str, dumps: Path) -> None:
    ended = run_script(block(key).code, dumps, name="compare.py")
    assert re.search(r"2025[-.]0?9[-.]30", ended.out + ended.err), ended


def test_the_script_that_calls_compare_distributed(dumps: Path) -> None:
    ended = run_script(block("004-10").code, dumps, name="compare.py")
    assert ended.code == 0, ended
    tables = [file.name for file in dumps.glob("output/*.xlsx")]
    assert sorted(re.sub(r"\d{14}", "", name) for name in tables) == [
        f"compare_result_rank{rank}_.xlsx" for rank in (0, 1)
    ]


@pytest.mark.parametrize(("key", "function"), [("004-7", compare), ("004-9", compare_distributed)])
def test_the_functions_take_what_the_seed_lists(key: str, function: object) -> None:
    """In this order, with these defaults; what is ours comes after."""
    call = ast.parse(block(key).code.strip(), mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert call.func.id == function.__name__  # type: ignore[attr-defined]
    named = [argument.id for argument in call.args if isinstance(argument, ast.Name)]
    defaults = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    assert list(parameters)[: len(named) + len(defaults)][: len(named)] == named
    assert {name: parameters[name].default for name in defaults} == defaults
    takes_any = any(word.arg is None for word in call.keywords)
    kinds = [parameter.kind for parameter in parameters.values()]
    assert (inspect.Parameter.VAR_KEYWORD in kinds) == takes_any


def test_a_call_in_dump_json_looks_as_the_seed_shows_it(dumps: Path) -> None:
    shown = json.loads(f"{{{block('004-17').code}}}")
    (name,) = shown
    written = json.loads((dumps / "npu_dump" / "dump.json").read_text())["data"][name]

    def shape_of(value: object, *, is_number: bool = False) -> object:
        """Return a value without the numbers that differ from run to run."""
        if isinstance(value, dict):
            return {
                key: shape_of(inner, is_number=key in ("Max", "Min", "Mean", "Norm"))
                for key, inner in value.items()
                if key not in ("data_name", "is_recompute")
            }
        if isinstance(value, list):
            return [shape_of(inner) for inner in value]
        return None if is_number else value

    assert shape_of(written) == shape_of(shown[name])


@pytest.mark.parametrize(
    ("key", "part"),
    [("004-18", "input"), ("004-19", "input"), ("004-20", "output"), ("004-21", "")],
)
def test_values_have_the_names_that_the_seed_derives(key: str, part: str, dumps: Path) -> None:
    call = (
        open_dump(dumps / "npu_dump" / "dump.json").part().call("Functional.max_pool2d.0.forward")
    )
    names = [leaf.name for leaf in call.leaves()]
    is_keyword = {name: not name.rpartition(".")[2].isdigit() for name in names}
    wanted = [
        name
        for name in names
        if f".{part}" in name
        and (not part or part == "output" or is_keyword[name] == (key == "004-19"))
    ]
    assert block(key).code.split() == wanted


def test_the_script_that_compares_dumps_of_ptdbg(tmp_path: Path) -> None:
    for folder in ("npu_dump", "gpu_dump"):
        target = tmp_path / folder / "ptdbg_dump_v2.0" / "rank0"
        (pkl,) = (DATA / "peer_dumps/ptdbg_ascend/2024-03/all").rglob("api_stack_dump.pkl")
        target.parent.mkdir(parents=True)
        target.symlink_to(pkl.parent)
    ended = run_script(block("002-8").code, tmp_path, name="compare.py")
    assert ended.code == 0, ended
    rows = rows_of(tmp_path)
    assert "NPU_Stack_Info" in rows[0] and len(rows) > 20
    for said in (ended.out, ended.err):
        assert "turn on the stack_mode" not in said and "JSONDecodeError" not in said
