"""The command line, run as a person runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import DATA
from tensorprobe import __version__

MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_tensor/npu"
MIX = DATA / "peer_dumps/msprobe-8.2.1/mlp/mix_statistics/npu"


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "120"} | environment,
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["show", "--help"], ["doctor", "--help"], ["compare", "--help"]]
)
def test_help_has_examples(arguments: list[str]) -> None:
    answer = run(*arguments)
    assert answer.returncode == 0
    assert "examples:" in answer.stdout.lower()


def test_help_imports_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\n"
        "from tensorprobe.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print('loaded', sorted({'torch', 'numpy', 'jiter', 'yaml'} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.endswith("loaded []\n")


def test_showing_a_dump_does_not_import_torch() -> None:
    program = (
        "import sys\nfrom tensorprobe.cli import main\n"
        "main(['show', sys.argv[1], 'Functional.linear.0.forward'])\n"
        "print('torch' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(MLP)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.endswith("False\n")


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"tensorprobe {__version__}\n"


def test_an_error_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    answer = run("show", tmp_path / "no\nwhere")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert (
        answer.stderr.startswith("tensorprobe: ")
        and "does not exist; check the path" in answer.stderr
    )


@pytest.mark.parametrize("order", [["--debug", "show"], ["show", "--debug"]])
def test_debug_shows_the_traceback(tmp_path: Path, order: list[str]) -> None:
    answer = run(*order, tmp_path / "nowhere")
    assert answer.returncode != 0
    assert "Traceback" in answer.stderr and "DumpError" in answer.stderr


def test_a_wrong_argument_is_exit_code_2() -> None:
    assert run("show").returncode == 2
    assert run("shwo").returncode == 2


def test_show_prints_the_calls_under_their_modules() -> None:
    lines = run("show", MIX).stdout.splitlines()
    assert lines[0] == "step0/rank  msprobe · task statistics · level mix · 22 calls"
    module = lines.index("Module.fc1.Linear.forward.0")
    call = lines.index("  Functional.linear.0.forward")
    assert module < call
    assert lines[call + 1].split()[:4] == ["input.0", "float32", "[2,", "4]"]
    assert "max 1.69079" in lines[call + 1]


def test_show_with_a_pattern_keeps_the_modules_around() -> None:
    answer = run("show", MIX, "Functional.relu.*")
    lines = answer.stdout.splitlines()
    assert "Module.act.ReLU.forward.0" in lines
    assert "  Functional.relu.0.forward" in lines
    assert "linear" not in answer.stdout


def test_show_of_one_name_shows_everything_about_it() -> None:
    out = run("show", MLP, "Functional.linear.0.forward").stdout
    assert "data of input.0" in out and "first values: -0.146795, 0.786141" in out
    assert "█" in out
    assert "train.py:22  forward" in out
    assert "Functional.linear.0.forward.input.0.pt" in out


def test_show_as_json_is_one_strict_object_per_line() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for path in (MLP, DATA / "peer_dumps/msprobe-8.2.1/edge/mix_statistics/npu"):
        lines = run("show", path, "--json").stdout.splitlines()
        rows = [json.loads(line, parse_constant=refuse) for line in lines]
        assert [row["kind"] for row in rows] == ["part"] + ["call"] * (len(rows) - 1)
    one = run("show", MLP, "Functional.linear.0.forward", "--json").stdout.splitlines()
    details = json.loads(one[1], parse_constant=refuse)
    assert details["data"][0]["statistics"]["count"] == 8
    assert sum(details["data"][0]["histogram"]["counts"]) == 8
    assert details["stack"][0].keys() == {"path", "line", "function", "source"}


def test_show_picks_a_rank_and_says_which_there_are() -> None:
    dist = DATA / "peer_dumps/msprobe-8.2.1/dist/L1_md5/npu"
    assert run("show", dist, "--rank", "1").stdout.startswith("step0/rank1 ")
    answer = run("show", dist, "--rank", "9")
    assert answer.returncode == 2 and "there are: step0/rank0, step0/rank1" in answer.stderr


def test_show_says_when_nothing_fits() -> None:
    answer = run("show", MLP, "nonsense")
    assert answer.returncode == 2
    assert "no call in" in answer.stderr and "fits 'nonsense'" in answer.stderr


def test_a_gap_is_exit_code_2_and_the_rest_is_shown(tmp_path: Path) -> None:
    text = (MIX / "step0/rank/dump.json").read_text()
    (tmp_path / "dump.json").write_text(text[: len(text) // 2])
    answer = run("show", tmp_path)
    assert answer.returncode == 2
    assert "Functional.linear.0.forward" in answer.stdout
    assert "missing: " in answer.stderr and "it ends in the middle" in answer.stderr
    gaps = [json.loads(line) for line in run("show", tmp_path, "--json").stdout.splitlines()]
    assert gaps[-1]["kind"] == "gap"


def test_a_call_whose_data_is_missing_is_shown_with_what_is_there(tmp_path: Path) -> None:
    rank = tmp_path / "rank"
    shutil.copytree(MLP / "step0/rank", rank)
    name = "Functional.linear.0.forward"
    (rank / "dump_tensor_data" / f"{name}.input.0.pt").unlink()
    (rank / "dump_tensor_data" / f"{name}.input.1.pt").write_bytes(b"PK\x03\x04 cut short")
    answer = run("show", rank, name)
    assert answer.returncode == 2
    assert "data of output.0" in answer.stdout and "█" in answer.stdout
    assert answer.stderr.count("missing: ") == 2
    assert f"{name}.input.0.pt" in answer.stderr and f"{name}.input.1.pt" in answer.stderr
    # What was not asked for is not checked, and not waited for.
    assert run("show", rank, "Functional.relu.0.forward").returncode == 0


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m tensorprobe show {MIX} | head -1; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    # Many calls, and nobody reads the pipe: the command is still busy when the signal comes.
    entries = ",\n".join(
        f'  "Torch.a.{n}.forward": {{"input_args": [null]}}' for n in range(20_000)
    )
    (tmp_path / "dump.json").write_text(
        f'{{\n "task": "statistics",\n "data": {{\n{entries}\n }}\n}}'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorprobe", "show", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background ignores the signal, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "tensorprobe: interrupted\n"


def test_doctor_tells_versions_devices_and_what_is_missing() -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert found["tensorprobe"] == __version__
    assert found["torch"].startswith("2.")
    assert "cpu" in found["devices"]
    assert {
        "compiled kernel",
        "compiled checksum",
        "compiled reader",
        "compiled row writer",
        "triton",
        "chromium",
        "ray",
        "numpy",
        "jiter",
    } <= found.keys()
    assert "compiled kernel" in run("doctor").stdout


def test_doctor_says_when_the_kernel_is_absent() -> None:
    found = json.loads(run("doctor", "--json", TENSORPROBE_NO_KERNEL="1").stdout)
    assert found["compiled kernel"].startswith("absent: numpy is used")


def test_doctor_survives_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    answer = run("doctor", "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(answer.stdout)["torch"] == "the import died with SIGILL"
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is missing')\n")
    answer = run("doctor", "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(answer.stdout)["torch"] == "ImportError: libcudart is missing"


def write_dump(folder: Path, name: str) -> Path:
    dump = {"task": "statistics", "level": "L1", "data": {name: {"input_args": [None, []]}}}
    (folder / "dump.json").write_text(json.dumps(dump))
    return folder


def test_a_name_cannot_command_the_terminal(tmp_path: Path) -> None:
    write_dump(tmp_path, "Torch.a\x1b[31m\nmissing: forged.0.forward")
    answer = run("show", tmp_path)
    assert "\x1b" not in answer.stdout
    assert not any(line.startswith("missing: ") for line in answer.stdout.splitlines())


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_sign_that_cannot_be_shown_is_no_error(tmp_path: Path, encoding: str) -> None:
    write_dump(tmp_path, "Torch.\ud800ä.0.forward")
    answer = run("show", tmp_path, PYTHONIOENCODING=encoding)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\\ud800" in answer.stdout


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    command = f"{sys.executable} -m tensorprobe show {MIX} > /dev/full"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == "tensorprobe: the output cannot be written: No space left on device\n"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('no rich', name='rich')")
    answer = run("show", MIX, PYTHONPATH=str(tmp_path))
    assert answer.returncode == 2
    assert answer.stderr == (
        "tensorprobe: this command needs the package rich, which is not installed here\n"
    )


def test_an_empty_list_and_a_peer_are_shown(tmp_path: Path) -> None:
    assert "input.1  []" in run("show", write_dump(tmp_path, "Torch.a.0.forward")).stdout
    dist = DATA / "peer_dumps/msprobe-8.2.1/dist/L1_md5/npu/step0/rank0"
    name = "Distributed.batch_isend_irecv.0.forward"
    assert "isend, peer 1, tag 0, group" in run("show", dist, name).stdout
    row = json.loads(run("show", dist, name, "--json").stdout.splitlines()[1])
    assert row["values"][0]["peer_op"]["peer"] == 1


def test_a_damaged_tree_a_thousand_deep_stays_readable(tmp_path: Path) -> None:
    names = [f"Module.a{n}.A.forward.0" for n in range(3000)]
    data = {name: {} for name in names}
    (tmp_path / "dump.json").write_text(json.dumps({"task": "statistics", "data": data}))
    parents = dict(zip(names, [None, *names[:-1]], strict=True))
    (tmp_path / "construct.json").write_text(json.dumps(parents))
    assert max(map(len, run("show", tmp_path).stdout.splitlines())) < 200
    (tmp_path / "construct.json").write_text(json.dumps(parents | {names[0]: names[-1]}))
    assert len(run("show", tmp_path).stdout.splitlines()) == 3001
