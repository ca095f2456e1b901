"""The calls that the older tools' manuals show, as they show them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import msprobe.pytorch
import ptdbg_ascend
from conftest import DATA, REPOSITORY
from tensorprobe import TensorprobeError

MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_statistics"
DIST = DATA / "peer_dumps/msprobe-8.2.1/dist/L1_md5/npu/step0"
DEPRECATED = (
    "msprobe: compare() is deprecated since 2025-09-30 and goes on working here; the command is "
    "`msprobe -f pytorch compare -i compare.json -o ./output`"
)
PTDBG = DATA / "peer_dumps/ptdbg_ascend/2024-03/all"


def dump_json(side: str) -> str:
    return str(next((MLP / side).rglob("dump.json")))


def names_in(folder: Path) -> list[str]:
    return sorted(re.sub(r"\d{14}", "TIME", file.name) for file in folder.iterdir())


def titles_in(folder: Path) -> list[Any]:
    (file,) = folder.glob("*.xlsx")
    return [cell.value for cell in openpyxl.load_workbook(file)["compare_result"][1]]


def run_python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(REPOSITORY / "compat/src"), *sys.path]
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


@pytest.fixture
def fields() -> dict[str, Any]:
    stack = str(Path(dump_json("npu")).with_name("stack.json"))
    return {
        "npu_json_path": dump_json("npu"),
        "bench_json_path": dump_json("bench"),
        "stack_json_path": stack,
        "is_print_compare_log": True,
    }


def test_compare_has_the_arguments_of_the_manual() -> None:
    parameters = inspect.signature(msprobe.pytorch.compare).parameters.values()
    given = [(p.name, p.default) for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert given[2:] == [
        ("stack_mode", False),
        ("auto_analyze", True),
        ("fuzzy_match", False),
        ("highlight", False),
    ]
    assert [name for name, _ in given[:2]] == ["input_param", "output_path"]


def test_compare_writes_the_table_and_the_advice(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from msprobe.pytorch import compare

    compare(fields, output_path=tmp_path / "output", stack_mode=True)
    assert names_in(tmp_path / "output") == ["advisor_TIME.txt", "compare_result_TIME.xlsx"]
    assert "NPU_Stack_Info" in titles_in(tmp_path / "output")
    assert "Functional.linear.0.forward: 4 passed\n" in capsys.readouterr().out


def test_stack_mode_decides_only_where_the_stack_file_is_named(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    msprobe.pytorch.compare(fields, tmp_path / "named")
    assert "NPU_Stack_Info" not in titles_in(tmp_path / "named")
    del fields["stack_json_path"]
    msprobe.pytorch.compare(fields, tmp_path / "found")
    assert "NPU_Stack_Info" in titles_in(tmp_path / "found")


def test_compare_without_advice_log_and_with_colours(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields["is_print_compare_log"] = False
    # In the order of the manual: stack_mode, auto_analyze, fuzzy_match, highlight.
    msprobe.pytorch.compare(fields, str(tmp_path), False, False, True, True)
    assert names_in(tmp_path) == ["compare_result_TIME.xlsx"]
    assert "Functional.linear.0.forward: 4 passed" not in capsys.readouterr().out


def test_compare_takes_a_mapping(fields: dict[str, Any], tmp_path: Path) -> None:
    name = "Functional.linear.0.forward.input.0"
    (tmp_path / "map.yaml").write_text(f"{name}: {name}\n")
    for number, mapping in enumerate((tmp_path / "map.yaml", {name: name})):
        msprobe.pytorch.compare(fields, tmp_path / str(number), data_mapping=mapping)
        assert len(names_in(tmp_path / str(number))) == 2


def test_a_missing_dump_is_an_error_of_one_line(fields: dict[str, Any], tmp_path: Path) -> None:
    fields["npu_json_path"] = str(tmp_path / "no.json")
    with pytest.raises(TensorprobeError, match=r"no\.json does not exist; check the path"):
        msprobe.pytorch.compare(fields, tmp_path / "o")
    fields["npu_json_path"] = fields["bench_json_path"]
    with pytest.raises(TensorprobeError, match="the folder of the results is None"):
        msprobe.pytorch.compare(fields, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("input_param", "complaint"),
    [
        ({"npu_json_path": "no.json", "bench_json_path": "no.json"}, "no.json does not exist"),
        ({"bench_json_path": "no.json"}, "npu_path (or npu_json_path, npu_pkl_path) is missing"),
        ({"npu_path": 3, "bench_path": "x"}, "npu_path is 3, wanted a path"),
        ({"npu_path": "x", "bench_path": "x", "y": 1}, "the field 'y' is not known"),
        (["npu", "bench"], "wanted a dict with npu_path and bench_path"),
        ("npu.json", "npu.json: the file cannot be read"),
    ],
)
def test_a_script_ends_with_one_line_and_no_traceback(
    input_param: object, complaint: str, tmp_path: Path
) -> None:
    program = f"from msprobe.pytorch import compare\ncompare({input_param!r}, 'o')\n"
    answer = run_python(program, tmp_path)
    assert answer.returncode == 2 and answer.stdout == ""
    deprecation, error = answer.stderr.splitlines()
    assert deprecation == DEPRECATED
    assert error.startswith("tensorprobe: ") and complaint in error


def test_the_two_functions_say_once_that_they_are_deprecated(tmp_path: Path) -> None:
    folders = [str(MLP / side / "step0") for side in ("npu", "bench")]
    program = (
        "from msprobe.pytorch import *\n"
        "for folder in 'ab':\n"
        f"    compare_distributed(*{folders!r}, folder, is_print_compare_log=False)\n"
        f"compare({{'npu_json_path': {dump_json('npu')!r}, 'bench_json_path': "
        f"{dump_json('bench')!r}, 'is_print_compare_log': False}}, 'c', diff_analyze=True)\n"
        "from ptdbg_ascend import compare as older\n"
        "print(torch.__name__)\n"
    )
    answer = run_python(program, tmp_path)
    distributed = DEPRECATED.replace("compare()", "compare_distributed()")
    assert answer.returncode == 0 and answer.stderr.splitlines() == [distributed, DEPRECATED]
    assert answer.stdout.endswith("\ntorch\n")
    assert names_in(tmp_path / "c") == ["compare_result_rank_TIME.json", "diff_analyze_TIME.json"]


def test_who_is_at_fault_comes_first_as_in_the_command(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields["is_print_compare_log"] = False
    msprobe.pytorch.compare(fields, tmp_path / "one")
    assert capsys.readouterr().out.startswith("culprit     Functional.linear.1.forward.input.1\n")
    folders = [MLP / side / "step0" for side in ("npu", "bench")]
    msprobe.pytorch.compare_distributed(*folders, tmp_path / "many", is_print_compare_log=False)
    assert capsys.readouterr().out.startswith("culprit     Functional.linear.1.forward.input.1\n")
    msprobe.pytorch.compare(fields, tmp_path / "quiet", auto_analyze=False)
    assert "culprit" not in capsys.readouterr().out


def test_compare_distributed_takes_step_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {}
    exec("from msprobe.pytorch import *", namespace)
    folders = [str(MLP / side / "step0") for side in ("npu", "bench")]
    namespace["compare_distributed"](*folders, str(tmp_path), is_print_compare_log=False)
    assert names_in(tmp_path) == ["advisor_rank_TIME.txt", "compare_result_rank_TIME.xlsx"]
    assert "Functional.linear.0.forward:" not in capsys.readouterr().out
    # Stacks are found by themselves; the switch has no effect.
    assert "NPU_Stack_Info" in titles_in(tmp_path)


def test_compare_distributed_names_each_file_after_its_rank(tmp_path: Path) -> None:
    msprobe.pytorch.compare_distributed(
        DIST, DIST, tmp_path, stack_mode=False, auto_analyze=False, fuzzy_match=True
    )
    ranks = sorted(folder.name for folder in DIST.iterdir())
    assert len(ranks) > 1
    assert names_in(tmp_path) == [f"compare_result_{rank}_TIME.xlsx" for rank in ranks]


def test_ptdbg_ascend_compares_its_own_files(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec("from ptdbg_ascend import *", namespace)
    npu = bench = next(PTDBG.rglob("api_stack_dump.pkl"))
    dump_result_param = {
        "npu_pkl_path": str(npu),
        "bench_pkl_path": str(bench),
        "npu_dump_data_dir": str(npu.with_suffix("")),
        "bench_dump_data_dir": str(bench.with_suffix("")),
        "is_print_compare_log": True,
    }
    namespace["compare"](dump_result_param, str(tmp_path / "output"), stack_mode=True)
    assert {"Cosine", "NPU_Stack_Info"} <= set(titles_in(tmp_path / "output"))
    step = npu.parent.parent
    ptdbg_ascend.compare_distributed(step, step, tmp_path / "ranks")
    assert len(list((tmp_path / "ranks").glob("*.xlsx"))) == 1


def test_the_other_names_are_those_of_tensorprobe() -> None:
    import tensorprobe

    for name in ("module_dump", "module_dump_end", "save", "seed_all"):
        assert getattr(msprobe.pytorch, name) is getattr(tensorprobe, name)
    from msprobe.pytorch.common import seed_all
    from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger
    from ptdbg_ascend.common.utils import seed_all as older_seed_all

    assert seed_all is older_seed_all is ptdbg_ascend.seed_all is tensorprobe.seed_all
    assert PrecisionDebugger is msprobe.pytorch.PrecisionDebugger
    assert issubclass(PrecisionDebugger, tensorprobe.PrecisionDebugger)
    for module in (msprobe.pytorch, ptdbg_ascend):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = module.nonsense


def test_the_whole_names_work_and_need_no_torch(fields: dict[str, Any], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from msprobe.pytorch.compare.pt_compare import compare\n"
        "from msprobe.pytorch.compare.distributed_compare import compare_distributed\n"
        "from ptdbg_ascend.compare.acc_compare import compare as older\n"
        "from ptdbg_ascend.compare.distributed_compare import compare_distributed as older_too\n"
        "from msprobe.pytorch import compare as short\n"
        "assert compare is short and compare.__wrapped__ is older\n"
        "assert compare_distributed.__wrapped__ is older_too\n"
        f"compare({fields!r}, {str(tmp_path)!r})\n"
        "assert 'torch' not in sys.modules\n"
    )
    answer = run_python(program, tmp_path)
    assert answer.returncode == 0, answer.stderr
