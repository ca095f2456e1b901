"""From paths to files: ranks, saved values, formats, names, sheets, and what is missing."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from small_dumps import call, compare_rows, compared, tensor, write_data, write_dump

import tensorprobe
from conftest import DATA
from tensorprobe.compare import compare
from tensorprobe.errors import ConfigError, DumpError, ReportError
from tensorprobe.records import CallRecord, Frame

RELU = "Torch.relu.0.forward"
MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp"


def write_ranks(folder: Path, ranks: dict[int, float], step: int = 0) -> Path:
    for rank, number in ranks.items():
        write_dump(
            folder / f"step{step}" / f"rank{rank}",
            [call(RELU, [tensor(1.0)], [tensor(number)])],
            rank=rank,
            step=step,
        )
    return folder


def test_the_room_is_the_function(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU)])
    assert tensorprobe.compare(dump, dump, tmp_path / "1").failed == 0
    program = (
        "import sys, tensorprobe.compare.run, tensorprobe\n"
        "from tensorprobe import compare\n"
        "assert compare(*sys.argv[1:4]).failed == tensorprobe.compare(*sys.argv[1:4]).failed == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, str(dump), str(dump), str(tmp_path / "2")]
    assert subprocess.run(command, check=False).returncode == 0


def test_one_rank_gets_the_plain_names(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    result = compare(dump, dump, tmp_path / "o", formats=["xlsx", "csv", "json"])
    names = [re.sub(r"\d{14}", "TIME", file.name) for file in result.files]
    assert names == [
        "compare_result_TIME.xlsx",
        "compare_result_TIME.csv",
        "compare_result_TIME.json",
        "compare_summary_TIME.json",
        "advisor_TIME.txt",
    ]
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == sorted(
        file.name for file in result.files
    )


def test_ranks_are_paired_by_number_and_each_gets_its_file(tmp_path: Path) -> None:
    ours = write_ranks(tmp_path / "a", {0: 1.0, 1: 9.0, 2: 1.0})
    theirs = write_ranks(tmp_path / "b", {0: 1.0, 1: 1.0, 3: 1.0})
    result = compare(ours / "step0", theirs / "step0", tmp_path / "o", formats=["csv"])
    assert [part.label for part in result.parts] == ["step0/rank0", "step0/rank1"]
    assert [part.tally.failed for part in result.parts] == [0, 1]
    failure = result.parts[1].tally.first_failure
    assert failure is not None and failure.name == f"{RELU}.output.0" and failure.line == 1
    names = [re.sub(r"\d{14}", "TIME", file.name) for file in result.files]
    assert names == [
        "compare_result_rank0_TIME.csv",
        "compare_summary_rank0_TIME.json",
        "advisor_rank0_TIME.txt",
        "compare_result_rank1_TIME.csv",
        "compare_summary_rank1_TIME.json",
        "advisor_rank1_TIME.txt",
    ]
    assert result.problems == (
        "step0/rank2 is not in the reference; it was not compared",
        "step0/rank3 is not in the candidate",
    )


def test_a_broken_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    ours = write_ranks(tmp_path / "a", {0: 1.0, 1: 1.0})
    theirs = write_ranks(tmp_path / "b", {0: 1.0, 1: 1.0})
    (theirs / "step0/rank0/dump.json").write_text("no dump")
    result = compare(ours, theirs, tmp_path / "o", formats=["csv"])
    assert [part.label for part in result.parts] == ["step0/rank1"]
    # Told once: what is wrong with the file is why the other run's rank has no partner.
    (problem,) = result.problems
    assert problem.startswith("step0/rank0 was not compared: ") and "not valid JSON" in problem
    (ours / "step0/rank1/dump.json").unlink()
    with pytest.raises(DumpError, match="no rank and step in common"):
        compare(ours, theirs, tmp_path / "o", formats=["csv"])


def test_a_rank_that_is_broken_on_both_sides_is_told_of_both(tmp_path: Path) -> None:
    for side in ("a", "b"):
        write_ranks(tmp_path / side, {0: 1.0, 1: 1.0})
        (tmp_path / side / "step0/rank1/dump.json").write_text("no dump")
    result = compare(tmp_path / "a", tmp_path / "b", tmp_path / "o", formats=["csv"])
    assert [part.label for part in result.parts] == ["step0/rank0"]
    for side, problem in zip("ab", result.problems, strict=True):
        assert str(tmp_path / side) in problem


def test_a_mapping_is_for_one_rank_at_a_time(tmp_path: Path) -> None:
    dump = write_ranks(tmp_path / "a", {0: 1.0, 1: 1.0})
    mapping = {f"{RELU}.input.0": f"{RELU}.input.0"}
    with pytest.raises(ConfigError, match="for one rank at a time, and these are step0/rank0, st"):
        compare(dump, dump, tmp_path / "o", mapping=mapping)
    assert not (tmp_path / "o").exists()
    one = dump / "step0/rank1"
    assert compare(one, one, tmp_path / "o", mapping=mapping).parts[0].tally.passed == 2
    # Fuzzy matching takes all ranks, but no mapping beside it.
    assert len(compare(dump, dump, tmp_path / "o", fuzzy=True).parts) == 2
    with pytest.raises(ConfigError, match="a mapping file and fuzzy matching exclude each other"):
        compare(one, one, tmp_path / "o", mapping=mapping, fuzzy=True)


def test_steps_are_paired_too(tmp_path: Path) -> None:
    ours = write_ranks(write_ranks(tmp_path / "a", {0: 1.0}), {0: 2.0}, step=1)
    theirs = write_ranks(write_ranks(tmp_path / "b", {0: 1.0}), {0: 1.0}, step=1)
    result = compare(ours, theirs, tmp_path / "o", formats=["csv"])
    assert [(part.label, part.tally.failed) for part in result.parts] == [
        ("step0/rank0", 0),
        ("step1/rank0", 1),
    ]
    assert re.match(r"compare_result_step1_rank0_\d{14}\.csv", result.parts[1].files[0].name)


def test_one_step_against_another_is_meant(tmp_path: Path) -> None:
    ours = write_ranks(tmp_path / "a", {0: 1.0, 1: 1.0}, step=3)
    theirs = write_ranks(tmp_path / "b", {0: 1.0, 1: 1.0}, step=0)
    result = compare(ours, theirs, tmp_path / "o", formats=["csv"])
    assert len(result.parts) == 2 and result.problems == ()


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    ours = write_ranks(tmp_path / "a", {0: 1.0, 1: 1.0})
    theirs = write_ranks(tmp_path / "b", {2: 1.0, 3: 1.0})
    with pytest.raises(DumpError, match="no rank and step in common"):
        compare(ours, theirs, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_saved_values_compare_the_same_way(tmp_path: Path) -> None:
    for side, number in (("a", 2.0), ("b", 1.0)):
        for rank in (0, 1):
            write_dump(
                tmp_path / side / "step0" / f"rank{rank}",
                [CallRecord("loss.0.debug", saved=(tensor(number),))],
                rank=rank,
                step=0,
                level="debug",
            )
    result = compare(tmp_path / "a/step0", tmp_path / "b/step0", tmp_path / "o", formats=["csv"])
    assert [part.tally.failed for part in result.parts] == [1, 1]
    assert result.files[0].name.startswith("debug_compare_result_rank0_")
    files = [next((tmp_path / side).rglob("debug.json")) for side in "ab"]
    single = compare(*files, tmp_path / "o2", formats=["csv"])
    assert re.match(r"debug_compare_result_\d{14}\.csv", single.files[0].name)


def test_what_both_hold_decides_the_mode(tmp_path: Path) -> None:
    tensors, statistics = MLP / "L1_tensor/npu", MLP / "L1_statistics/npu"
    sums = MLP / "L1_md5/npu"
    modes = {
        (a.parent.name, b.parent.name): compare(a, b, tmp_path, formats=["csv"]).parts[0].mode
        for a, b in [
            (tensors, tensors),
            (tensors, statistics),
            (statistics, sums),
            (sums, sums),
        ]
    }
    assert list(modes.values()) == ["tensor", "statistics", "statistics", "md5"]


def test_a_structure_dump_has_nothing_to_compare(tmp_path: Path) -> None:
    dump = DATA / "peer_dumps/msprobe-8.2.1/structure/L0/npu"
    result = compare(dump, dump, tmp_path, formats=["csv"])
    assert result.parts[0].tally.rows == 0


def test_stacks_are_shown_in_the_first_row_of_a_call(tmp_path: Path) -> None:
    frame = Frame("train.py", 3, "main", "loss()")
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)] * 2)], stack=[frame])
    rows = compared(dump, dump, tmp_path / "1")
    assert [row["NPU_Stack_Info"] for row in rows] == [str([str(frame)]), "N/A"]
    assert "NPU_Stack_Info" not in compared(dump, dump, tmp_path / "2", stack=False)[0]


def test_a_dump_without_stacks_has_no_such_column(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    assert "NPU_Stack_Info" not in compared(dump, dump, tmp_path / "1")[0]


def test_the_workbook_names_the_inputs_and_what_is_unmatched(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call(RELU, [tensor(1)]), call("Torch.abs.1.forward")])
    theirs = write_dump(tmp_path / "b", [call(RELU, [tensor(1)]), call("Torch.abs.0.forward")])
    result = compare(ours, theirs, tmp_path / "o", highlight=True)
    book = openpyxl.load_workbook(result.files[0])
    assert book.sheetnames == ["compare_result", "unmatched", "inputs"]
    facts = {row[0]: row[1:] for row in book["inputs"].iter_rows(values_only=True)}
    assert facts["path"] == tuple(str(next(side.rglob("dump.json"))) for side in (ours, theirs))
    assert facts["written by"][0].startswith("tensorprobe ")
    assert facts["highlight"][0] is True and facts["values compared"][0] == 1
    unmatched = list(book["unmatched"].iter_rows(min_row=2, values_only=True))
    assert unmatched == [
        ("NPU", "Torch.abs.1.forward", "the reference has no such call", "Torch.abs.0.forward"),
        ("Bench", "Torch.abs.0.forward", "the candidate has no such call", "Torch.abs.1.forward"),
    ]


def test_a_step_that_cannot_be_opened_does_not_change_the_names_of_the_others(
    tmp_path: Path,
) -> None:
    for side in ("a", "b"):
        for step in (0, 1):
            write_dump(tmp_path / side / f"step{step}" / "rank0", [call(RELU, [tensor(1)])])
    (tmp_path / "a/step0/rank0/dump.json").write_text("")
    result = compare(tmp_path / "a", tmp_path / "b", tmp_path / "o", advise=False)
    assert [re.sub(r"\d{14}", "TIME", file.name) for file in result.files] == [
        "compare_result_step1_rank0_TIME.xlsx"
    ]


def test_comparisons_in_a_row_do_not_replace_each_others_files(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    results = [compare(dump, dump, tmp_path / "o", first_difference=True) for _ in range(3)]
    files = [file for result in results for file in result.files]
    assert len(set(files)) == 12 == len(list((tmp_path / "o").iterdir()))


def test_the_workbook_names_every_option(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    mapping = {f"{RELU}.input.0": f"{RELU}.input.0"}
    result = compare(dump, dump, tmp_path / "o", mapping=mapping, stack=False, advise=False)
    rows = openpyxl.load_workbook(result.files[0])["inputs"].iter_rows(values_only=True)
    assert next(rows) == ("What", "NPU", "Bench")
    facts = {row[0]: row[1] for row in rows}
    options = ("fuzzy", "mapping", "highlight", "advice", "first difference", "call stacks")
    assert [facts[name] for name in options] == [False, "1 names", False, False, False, False]
    assert facts["formats"] == "xlsx"


def test_beside_a_csv_or_json_a_summary_says_what_the_small_sheets_say(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call(RELU, [tensor(1)]), call("Torch.abs.1.forward")])
    theirs = write_dump(tmp_path / "b", [call(RELU, [tensor(1)]), call("Torch.abs.0.forward")])
    result = compare(ours, theirs, tmp_path / "o", formats=["csv"], fuzzy=False)
    (file,) = (tmp_path / "o").glob("compare_summary_*.json")
    assert file in result.files
    summary = json.loads(file.read_text())
    for side, dump in (("NPU", ours), ("Bench", theirs)):
        assert summary[side]["path"] == str(next(dump.rglob("dump.json")))
        assert summary[side]["calls"] == 2 and summary[side]["devices"] == ""
    assert (summary["mode"], summary["fuzzy"], summary["passed"]) == ("statistics", False, 1)
    assert [(row["Side"], row["Name"], row["Nearest"]) for row in summary["unmatched"]] == [
        ("NPU", "Torch.abs.1.forward", "Torch.abs.0.forward"),
        ("Bench", "Torch.abs.0.forward", "Torch.abs.1.forward"),
    ]
    # The table itself stays clean for whatever parses it, and a workbook needs no second file.
    with next((tmp_path / "o").glob("*.csv")).open(newline="") as text:
        assert len({len(row) for row in csv.reader(text)}) == 1
    compare(ours, theirs, tmp_path / "x", formats=["xlsx"])
    assert not list((tmp_path / "x").glob("compare_summary_*"))


def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    result = compare(
        MLP / "L1_statistics/npu", MLP / "L1_statistics/bench", tmp_path,
        formats=["xlsx", "csv", "json"],
    )  # fmt: skip
    book, table, rows, *_ = result.files
    with table.open(newline="") as text:
        from_csv = list(csv.reader(text))
    from_json = [list(row.values()) for row in json.loads(rows.read_text())]
    sheet = openpyxl.load_workbook(book)["compare_result"]
    from_xlsx = [list(row) for row in sheet.iter_rows(min_row=2, values_only=True)]
    assert len(from_csv) - 1 == len(from_json) == len(from_xlsx) == 30
    assert [row[0] for row in from_xlsx] == [row[0] for row in from_json]
    assert [row[16] for row in from_xlsx] == pytest.approx([row[16] for row in from_json], nan_ok=1)
    assert [[str(cell) for cell in row] for row in from_json] == from_csv[1:]


def test_the_first_difference_is_told_with_type_and_place(tmp_path: Path) -> None:
    def dump(side: str, number: float) -> Path:
        return write_dump(
            tmp_path / side,
            [
                call("Torch.abs.0.forward", [tensor(1.0)], [tensor(1.0)]),
                call(RELU, [tensor(number)], [tensor(number)]),
                call("Torch.exp.0.forward", [tensor(number)], [tensor(number)]),
            ],
        )

    result = compare(dump("a", 5.0), dump("b", 1.0), tmp_path / "o", first_difference=True)
    states, analysis = (
        json.loads(next((tmp_path / "o").glob(pattern)).read_text())
        for pattern in ("compare_result_rank_*.json", "diff_analyze_*.json")
    )
    assert {name: entry["is_same"] for name, entry in states.items()} == {
        "Torch.abs.0.forward": True,
        RELU: False,
        "Torch.exp.0.forward": False,
    }
    item = states[RELU]["op_items"][1]
    assert item["NPU Name"] == f"{RELU}.output.0" and item["state"] == "output"
    (node,) = analysis["rank_0"]
    assert (node["op_name"], node["op_type"]) == (RELU, "Torch")
    assert node["position"] == {"call": 1, "parent": None}
    assert node["data_info"]["input"][f"{RELU}.input.0"]["NPU max"] == 5.0
    assert any(file.name.startswith("diff_analyze_") for file in result.files)


def test_no_difference_leaves_an_empty_analysis(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    compare(dump, dump, tmp_path / "o", first_difference=True, formats=["json"])
    assert json.loads(next((tmp_path / "o").glob("diff_analyze_*")).read_text()) == {}
    # Both are JSON; neither replaces the other.
    assert len(list((tmp_path / "o").glob("compare_result*.json"))) == 2


@pytest.mark.parametrize("formats", [["csv"], ["xlsx"], ["json"]])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, formats: list[str]) -> None:
    calls = [call(f"Torch.a.{n}.forward", [tensor(1.0 + n)] * 8) for n in range(400)]
    dump = write_dump(tmp_path / "a", calls)
    program = (
        "import resource, signal, sys\n"
        "from tensorprobe.compare import compare\n"
        "from tensorprobe.errors import ReportError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    compare(sys.argv[1], sys.argv[1], sys.argv[2], first_difference=True,\n"
        "            formats=sys.argv[3:])\n"
        "except ReportError as err:\n"
        "    print(err)\n"
    )
    out = tmp_path / "o"
    answer = subprocess.run(
        [sys.executable, "-c", program, str(dump), str(out), *formats],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "cannot be written" in answer.stdout and answer.stdout.count("\n") == 1
    assert list(out.iterdir()) == []


def test_bad_options_are_refused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU)])
    with pytest.raises(ConfigError, match="the format 'pdf' is not known"):
        compare(dump, dump, tmp_path, formats=["pdf"])
    with pytest.raises(ConfigError, match="no format is wanted"):
        compare(dump, dump, tmp_path, formats=[])
    with pytest.raises(ConfigError, match="jobs is -1"):
        compare(dump, dump, tmp_path, jobs=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be made"):
        compare(dump, dump, tmp_path / "file" / "below")


def test_progress_and_log_are_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    lines: list[str] = []
    array = np.ones(10, np.float32)
    dump = write_data(tmp_path / "a", {RELU: {"input": [array], "output": [array]}})
    other = tmp_path / "b"
    shutil.copytree(dump, other)
    compare(
        dump, other, tmp_path / "o", formats=["csv"], log=lines.append,
        progress=lambda *state: told.append(state),
    )  # fmt: skip
    assert told[-1] == ("bytes", 160, 160)
    assert lines == [f"{RELU}: 2 passed"]


def test_the_progress_of_several_ranks_is_that_of_all(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    array = np.ones(10, np.float32)
    for side in ("a", "b"):
        for rank in range(2):
            folder = tmp_path / side / "step0" / f"rank{rank}"
            write_data(folder, {RELU: {"input": [array], "output": [array]}})
    compare(
        tmp_path / "a", tmp_path / "b", tmp_path / "o", formats=["csv"],
        progress=lambda *state: told.append(state),
    )  # fmt: skip
    assert told == sorted(told) and told[-1] == ("bytes", 320, 320)


def test_an_expanded_tensor_counts_as_what_it_shows(tmp_path: Path) -> None:
    wide = np.broadcast_to(np.float32(2), (1000, 1000))
    dump = write_data(tmp_path / "a", {RELU: {"input": [wide]}})
    other = write_data(tmp_path / "b", {RELU: {"input": [np.full((1000, 1000), 2, np.float32)]}})
    _, rows = compare_rows(dump, other, tmp_path)
    assert rows[0]["Cosine"] == 1.0
