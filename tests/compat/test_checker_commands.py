"""`run_ut.py` and `run_overflow_check.py`, typed as seed 001 has them."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from pathlib import Path

import pytest
from older_runs import run_python, run_script

import api_accuracy_checker
from api_accuracy_checker.common.config import msCheckerConfig
from api_accuracy_checker.run_ut import run_overflow_check, run_ut

PACKAGE = Path(api_accuracy_checker.__file__).parent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three files of a run, under the number of the manual."""
    folder = tmp_path_factory.mktemp("recorded")
    program = """
import torch
import api_accuracy_checker.dump as DP
DP.msCheckerConfig.update_config(enable_dataloader=False)
DP.dump.set_dump_switch("ON")
torch.relu(torch.linspace(-1, 1, 8, requires_grad=True)).sum().backward()
"""
    assert run_script(program, folder).stderr == ""
    for file in folder.glob("*_info_*.json"):
        file.rename(folder / f"{file.name.partition('_info_')[0]}_info_0.json")
    return folder


@pytest.fixture
def at_home(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in recorded.glob("*_info_0.json"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FORWARD = ["-forward", "./forward_info_0.json"]
BOTH = [*FORWARD, "-backward", "./backward_info_0.json"]


def results(folder: Path) -> dict[str, list[str]]:
    (file,) = folder.glob("accuracy_checking_result_*.csv")
    assert len(list(folder.glob("accuracy_checking_details_*.csv"))) == 1
    with file.open(newline="", encoding="utf-8-sig") as text:
        titles, *rows = csv.reader(text)
    assert titles[:3] == ["API name", "Forward Test Success", "Backward Test Success"]
    return {row[0]: row[1:] for row in rows}


def test_the_commands_of_the_manual_through_the_folder_of_the_manual(at_home: Path) -> None:
    # As docs/compat.md says how to get that folder.
    home = at_home / "att"
    tools = home / "debug/accuracy_tools"
    tools.mkdir(parents=True)
    (tools / "api_accuracy_checker").symlink_to(PACKAGE)
    folder = tools / "api_accuracy_checker/run_ut"
    program = (
        f"import os, subprocess, sys; os.chdir({str(folder)!r}); "
        "os.environ['PYTHONPATH'] += os.pathsep + sys.argv[1]; "
        "sys.exit(subprocess.run([sys.executable, *sys.argv[2:]]).returncode)"
    )
    paths = [str(at_home / f"{kind}_info_0.json") for kind in ("forward", "backward")]
    words = ["run_ut.py", "-forward", paths[0], "-backward", paths[1]]
    words += ["-save_error_data", "--out_path", str(at_home / "results")]
    ended = run_python(["-c", program, f"{tools}/", *words], at_home)
    assert ended.returncode == 0, ended.stderr
    assert results(at_home / "results")["Torch.relu.0"][:2] == ["pass", "pass"]


def test_results_go_to_the_current_folder(at_home: Path) -> None:
    assert run_ut.main(BOTH) == 0
    assert set(results(at_home)) == {"Torch.linspace.0", "Torch.relu.0", "Tensor.sum.0"}
    assert not (at_home / "ut_error_data").exists()


def test_it_runs_as_a_module_and_has_help(at_home: Path) -> None:
    for module in ("run_ut", "run_overflow_check"):
        words = ["-m", f"api_accuracy_checker.run_ut.{module}", "--help"]
        answer = run_python(words, at_home)
        assert answer.returncode == 0
        assert (
            "-forward FILE" in answer.stdout
            and f"  python {module}.py -forward ./forward_info_0" in (answer.stdout)
        )


def test_failing_calls_are_kept_where_the_settings_say(
    at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    from tensorprobe_compat import checking

    def note(words: list[str]) -> int:
        seen.append(words)
        return 0

    monkeypatch.setattr(checking, "tensorprobe", note)
    before = msCheckerConfig.settings
    try:
        assert run_ut.main([*BOTH, "-save_error_data"]) == 0
        msCheckerConfig.update_config(error_data_path="elsewhere")
        assert run_ut.main([*BOTH, "-save_error_data", "-d", "0", "1", "-j", "-f"]) == 0
        assert run_ut.main([*FORWARD, "-o", "x", "-csv_path", "r"]) == 0
    finally:
        msCheckerConfig.settings = before
    assert seen == [
        ["precheck", "--jobs=1", "--save-errors=./ut_error_data", "--no-jit-compile",
         f"--backward={BOTH[3]}", "--", FORWARD[1]],
        ["precheck", "--jobs=1", "--save-errors=elsewhere", "--jit-compile", "--device=0",
         "--device=1", "--dedupe", f"--backward={BOTH[3]}", "--", FORWARD[1]],
        ["precheck", "--jobs=1", "--resume=r", "--", FORWARD[1]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-forward", "./forward_info_9.json"], "forward_info_9.json does not exist"),
        (["-forward", "./stray.json"], "stray.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(
    at_home: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (at_home / "stray.json").write_text("{")
    for main in (run_ut.main, run_overflow_check.main):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert complaint in said and said.count("\n") == 1 and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-forward", "forward_info_9.json", "-backward", "backward_info_0.json"],
         "forward_info_9.json does not exist; check the path"),
        (["-forward", "f.json", "-backward", "backward_info_0.json"],
         "f.json does not exist; check the path"),
        (["-forward", "forward_info_0.json", "-backward", "backward_info_9.json"],
         "backward_info_9.json does not exist; check the path"),
        (["-forward", "forward_info_0.json", "-backward", "."], "is no file; check the path"),
        (["-forward", "forward_info_0.json", "-d", "0", "0"], "-d 0 0 names a device twice"),
    ],
)  # fmt: skip
def test_what_run_ut_cannot_use_is_one_line(
    at_home: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ut.main(words) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_both_files_may_stand_anywhere_under_any_name(tmp_path: Path) -> None:
    program = """
import torch
import api_accuracy_checker.dump as DP
DP.msCheckerConfig.update_config(enable_dataloader=False, real_data=True)
DP.dump.set_dump_switch("ON")
torch.relu(torch.linspace(-1, 1, 8, requires_grad=True)).sum().backward()
"""
    assert run_script(program, tmp_path).stderr == ""
    for kind, place in (("forward", "a/f.json"), ("backward", "b/other/g.json")):
        (file,) = tmp_path.glob(f"{kind}_info_*.json")
        (tmp_path / place).parent.mkdir(parents=True)
        file.rename(tmp_path / place)
        data = tmp_path / f"{kind}_real_data"
        data.rename((tmp_path / place).parent / data.name)
    words = ["-forward", "a/f.json", "-backward", "b/other/g.json"]
    script = str(PACKAGE / "run_ut/run_ut.py")
    ended = run_python([script, *words], tmp_path)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert results(tmp_path)["Torch.relu.0"][:2] == ["pass", "pass"]
    # What is sent back comes from there: without its data it is missed.
    shutil.rmtree(tmp_path / "b/other/backward_real_data")
    ended = run_python([script, *words, "-o", "without"], tmp_path)
    assert ended.returncode == 2 and "backward_real_data/rank" in ended.stderr, ended.stderr
    # One that holds no calls is none at all, and not the one that stands beside.
    (tmp_path / "none.json").write_text("{}")
    ended = run_python([script, *words[:3], "none.json", "-o", "none"], tmp_path)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr


def test_what_has_no_effect_on_overflows_is_told(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_overflow_check.main([*BOTH, "-j"]) != 2
    said = capsys.readouterr().err
    assert "-j has no effect: calls are repeated on the CPU" in said
    assert "-backward has no effect: overflows of the way back are not judged" in said
    assert run_overflow_check.main([*FORWARD, "-j", "True"]) != 2
    assert "-j has no effect" in capsys.readouterr().err


def test_overflows_of_a_run_are_judged(tmp_path: Path) -> None:
    program = """
import torch
from ptdbg_ascend import *
set_dump_path("./dump")
register_hook(torch.nn.Linear(1, 1), overflow_check, overflow_nums=-1)
torch.exp(torch.full((2,), 1000.0))
"""
    assert run_script(program, tmp_path).returncode == 0
    (forward,) = tmp_path.glob("forward_info_*.json")
    words = [str(PACKAGE / "run_ut/run_overflow_check.py"), "-forward", f"./{forward.name}"]
    answer = run_python(words, tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "The Torch.exp.0 overflow is a normal overflow.\n" in answer.stdout


def test_importing_the_commands_captures_nothing(tmp_path: Path) -> None:
    program = """
import sys
import api_accuracy_checker, api_accuracy_checker.run_ut.run_ut
print("torch" in sys.modules, "api_accuracy_checker.dump" in sys.modules)
"""
    assert run_script(program, tmp_path).stdout == "False False\n"


def test_the_package_ships_its_settings() -> None:
    project = (PACKAGE.parent.parent / "pyproject.toml").read_text()
    assert 'api_accuracy_checker = ["config.json"]' in project
    assert (PACKAGE / "config.json").is_file() and os.access(sys.executable, os.X_OK)
