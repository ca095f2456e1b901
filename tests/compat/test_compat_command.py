"""The command `msprobe`, with the arguments that its manual shows."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest

import tensorprobe
import tensorprobe_compat
from conftest import DATA, REPOSITORY
from msprobe.msprobe import main
from tensorprobe.cli import main as tensorprobe_main
from tensorprobe_compat.command import translate

PEER = DATA / "peer_dumps/msprobe-8.2.1"
LINEAR = "Functional.linear.0.forward"


@pytest.fixture
def compare_json(tmp_path: Path) -> Path:
    sides = (PEER / "mlp/L1_statistics" / side for side in ("npu", "bench"))
    npu, bench = (str(next(side.rglob("dump.json"))) for side in sides)
    file = tmp_path / "compare.json"
    stack = npu.replace("dump.json", "stack.json")
    file.write_text(json.dumps({"npu_path": npu, "bench_path": bench, "stack_path": stack}))
    return file


def names_in(folder: Path) -> list[str]:
    return sorted(re.sub(r"\d{14}", "TIME", file.name) for file in folder.iterdir())


def rows_of(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8-sig") as text:
        return list(csv.reader(text))[1:]


def titles_in(folder: Path) -> list[object]:
    (file,) = folder.glob("*.xlsx")
    return [cell.value for cell in openpyxl.load_workbook(file)["compare_result"][1]]


def test_the_command_of_the_manual(
    compare_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-f", "pytorch", "compare", "-i", "./compare.json"]
    assert main([*words, "-o", "./mine", "-s"]) == 0
    assert names_in(tmp_path / "mine") == ["advisor_TIME.txt", "compare_result_TIME.xlsx"]
    assert "NPU_Stack_Info" in titles_in(tmp_path / "mine")
    # Without a folder, with -o alone, and without the framework.
    assert main([*words, "-c"]) == 0
    assert names_in(tmp_path / "output") == ["compare_result_TIME.xlsx"]
    assert "NPU_Stack_Info" not in titles_in(tmp_path / "output")
    assert main(["compare", "-i", "compare.json", "-c", "-o"]) == 0


def test_fuzzy_matching_and_colours(compare_json: Path, tmp_path: Path) -> None:
    words = ["-f", "pytorch", "compare", "-i", str(compare_json), "-o", str(tmp_path / "o")]
    assert main([*words, "-f", "-hl"]) == 0
    (file,) = (tmp_path / "o").glob("*.xlsx")
    rows = openpyxl.load_workbook(file)["inputs"].iter_rows(values_only=True)
    facts = {row[0]: row[1] for row in rows}
    assert facts["fuzzy"] is True and facts["highlight"] is True


def test_a_mapping_excludes_fuzzy_matching(
    compare_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(f"{LINEAR}.input.0: {LINEAR}.input.0\n")
    words = ["compare", "-i", str(compare_json), "-o", str(tmp_path / "o"), "-dm", str(mapping)]
    assert main(words) == 0
    assert main([*words, "-f"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_first_difference_takes_the_place_of_the_table(
    compare_json: Path, tmp_path: Path
) -> None:
    assert main(["compare", "-i", str(compare_json), "-o", str(tmp_path / "o"), "-da"]) == 0
    assert names_in(tmp_path / "o") == ["compare_result_rank_TIME.json", "diff_analyze_TIME.json"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-f", "mindspore", "compare", "-i", "x"], "mindspore dumps are not read here"),
        (["-f", "pytorch", "graph"], "`tensorprobe show DUMP` shows the calls of a run"),
        (["op_generate", "--and", "more"], "`tensorprobe precheck --save-errors DIR` writes"),
        (["compare", "-i", "x", "--nonsense", "y"], "compare does not know --nonsense y"),
        (["compare", "-i", "nowhere.json"], "nowhere.json"),
        (["compare", "-i", "x", "-cm", "y"], "-cm is for MindSpore; give -dm"),
        (["compare", "-i", "x", "-am"], "-am is for MindSpore; give -dm"),
        (["compare"], "give -i with a compare.json, or both -tp and -gp"),
        (["compare", "-tp", "x"], "give -i with a compare.json, or both -tp and -gp"),
        (["compare", "-i", "x", "-tp", "x", "-gp", "y"], "give -i with a compare.json, or both"),
        (["compare", "-tp", "x", "-gp", "y", "-m", "atb"], "-m atb is not here"),
        (["compare", "-tp", "x", "-gp", "y", "--rank", "0"], "--rank is for MindSpore's kernels"),
        (["compare", "-tp", "x", "-gp", "y", "--step", "0"], "--step is for MindSpore's kernels"),
        (["compare", "-tp", "x", "-gp", "y", "--config", "c"], "changes tensors before they are"),
        (
            ["compare", "-tp", "x", "-gp", "y", "--consistent_check", "--backend", "fsdp"],
            "--consistent_check is not here; name the pairs",
        ),
        (["run_ut", "-api_info", "x", "-config", "no.json"], "no.json"),
        (["run_ut", "-api_info", "x", "-d", "1", "1"], "-d 1 1 names a device twice"),
        (["-f", "pytorch", "comapre", "-i", "x"], "'comapre'; did you mean compare? msprobe --h"),
        (["--framework=pytorch", "zzzz"], "there is no command 'zzzz'; msprobe --help lists them"),
    ],
)
def test_what_is_not_here_is_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run_ut"], "the following arguments are required: -api_info/--api_info_file"),
        (["merge_result", "-i", "a"], "required: -o/--output_dir, -config/--config-path"),
        (["multi_run_ut", "-api_info", "x", "-n", "65"], "'65' is not a number from 1 to 64"),
        (["run_ut", "-api_info", "x", "-d", "-1"], "'-1' is not the number of a device, from 0 on"),
        (["run_ut", "-api_info", "x", "-d", "x"], "'x' is not the number of a device"),
    ],
)
def test_arguments_that_are_missing_or_wrong_are_named(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["-f", "pytorch"]])
def test_without_a_command_there_is_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert "examples:\n  msprobe -f pytorch compare -i" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["-V"])
    assert end.value.code == 0
    version = f"msprobe of tensorprobe-compat {tensorprobe_compat.__version__}\n"
    assert capsys.readouterr().out == version


MERGE = ["merge", "--output=./output_dir", "--config=./config.yaml", "--", "./input_dir"]


@pytest.mark.parametrize(
    ("words", "translated"),
    [
        ("merge_result -i ./input_dir -o ./output_dir -config ./config.yaml", MERGE),
        (
            "merge_result --input_dir ./input_dir --output_dir ./output_dir "
            "--config-path ./config.yaml",
            MERGE,
        ),
        ("run_ut -api_info a", ["precheck", "--jobs=1", "--no-jit-compile", "--", "a"]),
        ("multi_acc_check -api_info a -j", ["precheck", "--jobs=8", "--jit-compile", "--", "a"]),
        (
            "multi_run_ut --api_info_file a --out_path b --num_splits 3 --device 1 0 --filter_api",
            ["precheck", "--jobs=3", "--output=b", "--no-jit-compile", "--device=1", "--device=0",
             "--dedupe", "--", "a"],
        ),
        ("acc_check -api_info a -csv_path r", ["precheck", "--jobs=1", "--resume=r", "--", "a"]),
        ("run_overflow_check -api_info a -d 0", ["overflow", "--device=0", "--", "a"]),
        ("overflow_check -i a", ["overflow", "--output=./output", "--origins-json", "--", "a"]),
        (
            "nan_analyze --input_path a --output_path b",
            ["overflow", "--output=b", "--origins-json", "--", "a"],
        ),
        (
            "compare -tp a -gp b",
            ["compare", "--output=./output", "--format=csv", "--", "a", "b"],
        ),
        (
            "compare --target_path a --golden_path b -o c --xlsx -fm -dm m -tensor_log",
            ["compare", "--output=c", "--fuzzy", "--mapping=m", "--format=xlsx", "--log", "--",
             "a", "b"],
        ),
    ],
)  # fmt: skip
def test_words_of_both_spellings_become_words_of_tensorprobe(
    words: str, translated: list[str]
) -> None:
    for framework in (["-f", "pytorch"], ["--framework", "pytorch"], []):
        found: list[str] = []
        assert translate([*framework, *words.split()], found) == 0
        assert found == translated


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("compare -i a -lm b", "-lm has no effect with PyTorch; name pairs in a YAML file, -dm"),
        ("run_overflow_check -api_info a -j True", "-j has no effect: calls are repeated on the"),
        ("run_ut -api_info a -o b -csv_path c/r", "-o has no effect with -csv_path: the run goes"),
    ],
)
def test_flags_without_effect_are_told_in_one_line(
    words: str, notice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert translate(words.split(), []) == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"msprobe: {notice}") and said.err.count("\n") == 1
    assert not said.out


def test_the_newer_spelling_compares_two_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sides = [str(PEER / f"mlp/L1_statistics/{side}/step0") for side in ("npu", "bench")]
    words = ["compare", "-tp", sides[0], "-gp", sides[1]]
    assert main(words) == 0
    # The summary holds what an xlsx has in sheets of its own.
    files = ["advisor_TIME.txt", "compare_result_TIME.csv", "compare_summary_TIME.json"]
    assert names_in(tmp_path / "output") == files
    assert f"{LINEAR}: 4 passed" not in capsys.readouterr().out
    assert main([*words, "-o", "./mine", "--xlsx", "-tensor_log"]) == 0
    assert names_in(tmp_path / "mine") == ["advisor_TIME.txt", "compare_result_TIME.xlsx"]
    assert f"{LINEAR}: 4 passed" in capsys.readouterr().out


def test_run_ut_is_the_precheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dump = next((PEER / "mlp/L1_statistics/npu").rglob("dump.json"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "run_ut", "run_ut": {"white_list": ["relu"]}}))
    words = ["run_ut", "-api_info", str(dump), "-o", "results", "-config", "config.json"]
    assert main(["-f", "pytorch", *words, "-save_error_data", "-f"]) == 0
    (file,) = (tmp_path / "results").glob("accuracy_checking_result_*.csv")
    rows = rows_of(file)
    assert [row[0] for row in rows] == ["Torch.relu.0"] or all("relu" in row[0] for row in rows)
    assert rows


def test_lists_of_run_ut_hold_whole_names_and_what_they_leave_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = str(next((PEER / "mlp/L1_statistics/npu").rglob("dump.json")))
    assert main(["-f", "pytorch", "run_ut", "-api_info", dump, "-o", "all"]) == 0
    (file,) = (tmp_path / "all").glob("accuracy_checking_result_*.csv")
    names = [row[0] for row in rows_of(file)]
    assert any(".relu." in name for name in names)
    capsys.readouterr()
    lists = {"black_list": ["relu", "elu", "nosuch"]}
    (tmp_path / "config.json").write_text(json.dumps({"task": "run_ut", "run_ut": lists}))
    words = ["run_ut", "-api_info", dump, "-o", "some", "-config", "config.json", "-j"]
    assert main(["-f", "pytorch", *words]) == 0
    (file,) = (tmp_path / "some").glob("accuracy_checking_result_*.csv")
    kept = [row[0] for row in rows_of(file)]
    # `elu` is a part of relu and of gelu, and the name of neither.
    assert kept == [name for name in names if ".relu." not in name]
    shown = capsys.readouterr()
    assert f"{len(names) - len(kept)} of {len(names)} calls are left out" in shown.out
    assert "no call of the dump fits *.elu.* or *.nosuch.*" in shown.out
    assert "-j, the NPU's compiler, has no effect on other devices" in shown.err


@pytest.mark.parametrize("flag", ["-fr", "-cfr"])
def test_flags_for_kernels_are_refused_by_their_names(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "-tp", "a", "-gp", "b", flag, "x"]) == 2
    assert f"msprobe compare: {flag} is not for dumps of PyTorch" in capsys.readouterr().err


@pytest.mark.parametrize("begun_by", ["msprobe -j", "msprobe", "tensorprobe"])
def test_run_ut_goes_on_with_the_result_file_alone(
    begun_by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = str(next((PEER / "mlp/L1_statistics/npu").rglob("dump.json")))
    if begun_by == "tensorprobe":
        assert tensorprobe_main(["precheck", dump, "-o", "results"]) == 0
    else:
        words = ["-f", "pytorch", "run_ut", "-api_info", dump, "-o", "results"]
        assert main([*words, *begun_by.split()[1:]]) == 0
    (result,) = (tmp_path / "results").glob("accuracy_checking_result_*.csv")
    whole = result.read_bytes()
    result.write_bytes(whole[: len(whole) * 2 // 3])
    folder = names_in(tmp_path / "results")
    capsys.readouterr()
    assert main(["-f", "pytorch", "run_ut", "-api_info", dump, "-csv_path", str(result)]) == 0
    assert not capsys.readouterr().err
    assert result.read_bytes() == whole and names_in(tmp_path / "results") == folder
    assert names_in(tmp_path) == ["results"]


def test_run_overflow_check_judges_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = next((PEER / "overflow/L1").rglob("dump.json"))
    assert main(["-f", "pytorch", "run_overflow_check", "-api_info", str(dump)]) in (0, 1)
    assert "normal overflow." in capsys.readouterr().out


def test_overflow_check_looks_at_all_ranks_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    step = next((PEER / "overflow/L1").rglob("dump.json")).parents[1]
    assert main(["overflow_check", "-i", str(step)]) in (0, 1)
    assert "normal overflow." in capsys.readouterr().out
    anomaly, table = sorted(path.name for path in (tmp_path / "output").iterdir())
    assert re.fullmatch(r"anomaly_analyze_[0-9]{19}\.json", anomaly)
    assert table.startswith("overflow_check_result_")


@pytest.mark.parametrize("module", ["msprobe", "msprobe.msprobe"])
def test_it_runs_as_a_module_and_has_help(module: str) -> None:
    paths = [str(REPOSITORY / "compat/src"), *sys.path]
    answer = subprocess.run(
        [sys.executable, "-m", module, "-f", "pytorch", "compare", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert answer.returncode == 0 and "--data_mapping" in answer.stdout
    assert "examples:\n  msprobe -f pytorch compare -i ./compare.json" in answer.stdout


def test_both_distributions_have_one_version_and_the_command_is_installed() -> None:
    assert tensorprobe_compat.__version__ == tensorprobe.__version__
    project = (REPOSITORY / "compat/pyproject.toml").read_text()
    assert '[project.scripts]\nmsprobe = "msprobe.msprobe:main"\n' in project
