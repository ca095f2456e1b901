"""What seed 004 shows of merging the ranks' results works as it is written."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path

import openpyxl
import pytest
from script_runs import run_script, run_shell
from seed_table import block

from msprobe.msprobe import main
from tensorprobe import open_dump

COLLECTIVES = """
import os
import sys
import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger

dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group", rank=0, world_size=1)
for folder, scale in (("npu_dump", 1.5), ("bench_dump", 1.0)):
    debugger = PrecisionDebugger(task="statistics", dump_path=folder, level="L1")
    debugger.start()
    given = torch.arange(1.0, 5.0) * scale
    dist.all_reduce(given)
    dist.all_gather_into_tensor(torch.empty(4), given)
    torch.relu(given)
    debugger.stop()
    debugger.step()
    debugger.close()
dist.destroy_process_group()
"""


@functools.cache
def results_of_two_ranks() -> Path:
    """Compare two ranks of two runs; returns the folder with their tables."""
    folder = Path(tempfile.mkdtemp(prefix="seeds-"))
    ended = run_script(COLLECTIVES, folder, name="train.py")
    assert ended.code == 0, ended
    for run in ("npu_dump", "bench_dump"):
        shutil.copytree(folder / run / "step0" / "rank0", folder / run / "step0" / "rank1")
    names = [call.name for call in open_dump(folder / "npu_dump/step0/rank0").parts[0]]
    assert "Distributed.all_reduce.0.forward" in names
    paths = {
        "npu_path": str(folder / "npu_dump/step0"),
        "bench_path": str(folder / "bench_dump/step0"),
    }
    (folder / "compare.json").write_text(json.dumps(paths | {"is_print_compare_log": False}))
    assert (
        main(["compare", "-i", str(folder / "compare.json"), "-o", str(folder / "out"), "-c"]) == 0
    )
    return folder / "out"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(results_of_two_ranks(), tmp_path / "input_dir")
    (tmp_path / "config.yaml").write_text(block("004-12").code, encoding="utf-8")
    return tmp_path


def test_the_command_merges_the_ranks_by_the_file_of_the_seed(folder: Path) -> None:
    ended = run_shell(block("004-11").code, folder)
    assert ended.code == 0, ended
    (merged,) = folder.glob("output_dir/multi_ranks_compare_merge_*.xlsx")
    book = openpyxl.load_workbook(merged)
    assert book.sheetnames[:3] == ["Max diff", "L2norm diff", "MeanRelativeErr"]
    titles, *rows = book["Max diff"].iter_rows(values_only=True)
    assert list(titles) == ["NPU Name", "rank0", "rank1"]
    diffs = {row[0]: row[1:] for row in rows}
    assert [float(value) for value in diffs["Distributed.all_reduce.0.forward.output.0"]] == [2, 2]
    assert not any("relu" in str(name) for name in diffs)
    assert any("all_gather_into_tensor" in str(name) for name in diffs)


def test_a_file_without_apis_is_one_line_that_says_so(folder: Path) -> None:
    (folder / "config.yaml").write_text("compare_index:\n- Max diff\n")
    ended = run_shell(block("004-11").code, folder)
    assert ended.code == 2 and ended.err.count("\n") == 1 and "api" in ended.err, ended
    assert not list(folder.glob("output_dir/*.xlsx"))


def test_without_metrics_there_is_a_sheet_for_each_of_the_mode(folder: Path) -> None:
    (folder / "config.yaml").write_text("api:\n- Distributed\n")
    assert run_shell(block("004-11").code, folder).code == 0
    (merged,) = folder.glob("output_dir/multi_ranks_compare_merge_*.xlsx")
    names = openpyxl.load_workbook(merged).sheetnames
    wanted = ["Max diff", "Min diff", "Mean diff", "L2norm diff"]
    wanted += ["MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"]
    assert names[:9] == [*wanted, "Requires_grad Consistent"]


def test_cells_are_blank_where_a_rank_has_no_data(folder: Path) -> None:
    (table,) = folder.glob("input_dir/compare_result_rank1_*.xlsx")
    book = openpyxl.load_workbook(table)
    sheet = book.worksheets[0]
    rows = [row[0].row for row in sheet.iter_rows() if "all_gather" in str(row[0].value)]
    sheet.delete_rows(rows[0], len(rows))
    book.save(table)
    assert run_shell(block("004-11").code, folder).code == 0
    (merged,) = folder.glob("output_dir/multi_ranks_compare_merge_*.xlsx")
    cells = openpyxl.load_workbook(merged)["Max diff"].iter_rows(values_only=True, min_row=2)
    found = {row[0]: row[1:] for row in cells}
    gathered = [pair for name, pair in found.items() if "all_gather" in str(name)]
    assert gathered and all(pair[1] is None for pair in gathered)
    assert any(pair[0] is not None for pair in gathered)


def test_checksums_are_refused_in_one_line(folder: Path) -> None:
    shutil.rmtree(folder / "input_dir")
    (folder / "input_dir").mkdir()
    titles = "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,"
    titles += "NPU Requires_grad,Bench Requires_grad,NPU MD5,BENCH MD5,"
    titles += "Requires_grad Consistent,Result,Err_message\n"
    row = "Distributed.all_reduce.0.forward.input.0,Distributed.all_reduce.0.forward.input.0,"
    row += "torch.float32,torch.float32,[4],[4],False,False,aabbccdd,aabbccdd,True,Pass,\n"
    table = folder / "input_dir" / "compare_result_rank0_20260102030405.csv"
    table.write_text(titles + row)
    ended = run_shell(block("004-11").code, folder)
    assert ended.code == 2 and ended.err.count("\n") == 1 and "md5" in ended.err.lower(), ended
