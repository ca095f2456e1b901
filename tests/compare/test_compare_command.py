"""`tensorprobe compare` on the command line: output, exit codes, interruption."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_dumps import call, tensor, write_data, write_dump

from tensorprobe.cli import main

RELU = "Torch.relu.0.forward"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two dumps whose output differs; each has a call of its own."""
    sides = []
    for side, number in (("a", 9.0), ("b", 1.0)):
        calls = [
            call(RELU, [tensor(1.0)], [tensor(number)]),
            call(f"Torch.{side}.0.forward", [tensor(1.0)]),
        ]
        sides.append(str(write_dump(tmp_path / side, calls)))
    return sides[0], sides[1]


def test_the_summary_says_what_came_out(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    options = ("--format", "csv,json", "--no-blame")
    assert main(["compare", *pair, "-o", str(out), *options]) == 0
    text = capsys.readouterr().out
    assert "2 values compared by statistics: 1 passed, 1 failed" in text
    assert "unmatched: 1 values of the candidate, 1 calls and values of the reference" in text
    assert "    Torch.a.0.forward: the reference has no such call" in text
    assert f"first that fails: {RELU}.output.0" in text
    assert "this operation computes something else" in text
    for file in out.iterdir():
        assert str(file) in text
    assert {file.suffix for file in out.iterdir()} == {".csv", ".json", ".txt"}


def test_of_many_ranks_those_are_shown_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(12):
        for side in ("a", "b"):
            number = 9.0 if (side, rank) == ("a", 7) else 1.0
            calls = [call(RELU, [tensor(1.0)], [tensor(number)])]
            write_dump(tmp_path / side / "step0" / f"rank{rank}", calls)
    pair = str(tmp_path / "a" / "step0"), str(tmp_path / "b" / "step0")
    assert main(["compare", *pair, "-o", str(tmp_path / "o"), "--no-blame"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "12 ranks and steps: 24 values compared by statistics: 23 passed, 1 failed"
    assert lines[1] == "step0/rank7: 2 values compared by statistics: 1 passed, 1 failed"
    assert lines[2] == f"  first that fails: {RELU}.output.0"
    assert lines[-1].startswith(f"24 files in {tmp_path / 'o'}: compare_result_rank0_")
    assert len(lines) == 5


def test_memory_as_it_was_found_is_not_the_first_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = []
    for side, number in (("a", 9.0), ("b", 1.0)):
        calls = [
            call("Torch.empty.0.forward", [], [tensor(number)]),
            call(RELU, [tensor(1.0)], [tensor(number)]),
        ]
        sides.append(str(write_dump(tmp_path / side, calls)))
    assert main(["compare", *sides, "-o", str(tmp_path / "o"), "--first-diff"]) == 0
    text = capsys.readouterr().out
    assert ": 1 passed, 1 failed, 1 uninitialised\n" in text
    assert f"first that fails: {RELU}.output.0" in text
    (found,) = (tmp_path / "o").glob("diff_analyze*")
    assert RELU in found.read_text() and "Torch.empty" not in found.read_text()


def test_without_advice(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    assert main(["compare", *pair, "-o", str(out), "--no-advice", "--first-diff"]) == 0
    assert not list(out.glob("advisor*")) and len(list(out.glob("diff_analyze*"))) == 1
    assert "computes something else" not in capsys.readouterr().out


def test_a_compare_json_prints_a_line_per_call_unless_told_not_to(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "compare.json"
    fields = {"npu_path": pair[0], "bench_path": pair[1]}
    config.write_text(json.dumps(fields))
    arguments = ["compare", str(config), "-o", str(tmp_path / "o"), "--format", "csv"]
    assert main(arguments) == 0
    assert f"{RELU}: 1 passed, 1 failed\n" in capsys.readouterr().out
    config.write_text(json.dumps(fields | {"is_print_compare_log": False}))
    assert main(arguments) == 0
    assert f"{RELU}:" not in capsys.readouterr().out


def test_runs_of_which_a_rank_is_missing_do_not_just_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, ranks in (("a", 2), ("b", 1)):
        for rank in range(ranks):
            calls = [call(RELU, [tensor(1.0)], [tensor(1.0)])]
            write_dump(tmp_path / side / "step0" / f"rank{rank}", calls)
    pair = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["compare", *pair, "-o", str(tmp_path / "o")]) == 2
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == (
        "verdict     both runs agree in what was compared, but 1 thing could not be"
    )
    assert lines[1].startswith("note        not everything could be compared")
    assert "missing: step0/rank1 is not in the reference" in captured.err


def test_what_is_missing_is_said_and_gives_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {RELU: {"input": [np.ones(3, np.float32)], "output": [np.ones(4, np.float32)]}}
    ours, theirs = write_data(tmp_path / "a", data), write_data(tmp_path / "b", data)
    next(theirs.rglob("*input.0.pt")).unlink()
    assert main(["compare", str(ours), str(theirs), "-o", str(tmp_path / "o")]) == 2
    captured = capsys.readouterr()
    assert "missing: " in captured.err and f"{RELU}.input.0.pt" in captured.err
    assert "2 values compared by real data: 1 passed, 0 failed, 1 without" in captured.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{tmp}/nowhere", "{tmp}/b"], "nowhere does not exist"),
        (["{tmp}/b"], "b is one dump alone"),
        (["{tmp}/b/dump.json"], "dump.json is one dump alone; give the trusted one behind it"),
        (["{tmp}/train.py"], "train.py is no compare.json; if it is a dump it is one dump alone"),
        (
            ["{tmp}/train.py", "{tmp}/b"],
            "train.py is no dump: it is not valid JSON",
        ),
        (["{tmp}/a", "{tmp}/cut.json"], "it is damaged: dump it again"),
        (["{tmp}/a", "{tmp}/empty.json"], "empty.json is empty; dump it again"),
        (["{tmp}/a", "{tmp}/b", "--format", "pdf"], "the format 'pdf' is not known"),
        (["{tmp}/a", "{tmp}/b", "--mapping", "{tmp}/no.yaml"], "no.yaml"),
        (["{tmp}/a", "{tmp}/b", "-o", "/proc/nowhere"], "cannot be made"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    del pair
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "cut.json").write_text('{"task": ')
    (tmp_path / "empty.json").write_text("")
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    assert main(["compare", "-o", str(tmp_path / "o"), *given]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


def test_help_says_what_a_failing_comparison_gives(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    text = capsys.readouterr().out
    assert "Exit code 0: compared, whether or not values differ" in text
    assert "tensorprobe compare compare.json" in text


def test_torch_is_not_imported(pair: tuple[str, str], tmp_path: Path) -> None:
    """It alone would take longer than most comparisons."""
    program = (
        "import sys\n"
        "from tensorprobe.cli import main\n"
        "code = main(['compare', *sys.argv[1:]])\n"
        "assert not {'torch', 'rich', 'polars', 'pandas'} & set(sys.modules), sys.modules\n"
        "sys.exit(code)\n"
    )
    command = [sys.executable, "-c", program, *pair, "-o", str(tmp_path / "o")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def write_long(folder: Path) -> tuple[Path, Path]:
    """Statistics that take a while to compare."""
    calls = [
        call(f"Torch.relu.{number}.forward", [tensor(1.0)] * 3, [tensor(2.0)])
        for number in range(30_000)
    ]
    dump = write_dump(folder / "a", calls)
    return dump, dump


def write_long_data(folder: Path) -> tuple[Path, Path]:
    """Real data that take a while to compare."""
    array = np.arange(300, dtype=np.float32)
    data = {f"Torch.relu.{number}.forward": {"input": [array]} for number in range(1_500)}
    return write_data(folder / "a", data), write_data(folder / "b", data)


@pytest.mark.parametrize(
    ("write", "wait", "options"),
    [
        (write_long, 0.25, []),
        (write_long, 1.0, []),
        (write_long, 0.5, ["--format", "csv"]),
        (write_long, 0.5, ["--format", "csv,json", "--first-diff"]),
        (write_long_data, 0.0, ["--first-diff"]),
    ],
)
def test_an_interrupted_comparison_leaves_nothing_half_written(
    tmp_path: Path, write: Callable[[Path], tuple[Path, Path]], wait: float, options: list[str]
) -> None:
    sides = map(str, write(tmp_path))
    out = tmp_path / "o"
    command = [sys.executable, "-m", "tensorprobe", "compare", *sides, "-o", str(out), *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background starts with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    if process.returncode == 130:
        assert error == "tensorprobe: interrupted\n"
    else:
        # It was done before; Python itself, while it ends, is ended by the signal.
        assert process.returncode in (0, -signal.SIGINT) and error == ""
        assert list(out.glob("compare_*"))
    # Nothing hidden stays, and what has its name already is whole.
    names = ("compare_", "adv", "diff_analyze")
    assert [file for file in out.iterdir() if not file.name.startswith(names)] == []
    for file in out.glob("*.xlsx"):
        assert zipfile.ZipFile(file).testzip() is None
    for file in out.glob("*.json"):
        json.loads(file.read_text())
    for file in out.glob("*.csv"):
        assert file.read_text().endswith("\n") and file.read_text().count("\n") == 120_001


def test_an_interruption_names_the_ranks_that_are_compared(tmp_path: Path) -> None:
    for rank, count in enumerate((5, 20_000, 5)):
        calls = [
            call(f"Torch.relu.{n}.forward", [tensor(1.0)], [tensor(2.0)]) for n in range(count)
        ]
        write_dump(tmp_path / "a" / "step0" / f"rank{rank}", calls, step=0, rank=rank)
    dump = str(tmp_path / "a" / "step0")
    inputs = tmp_path / "compare.json"
    inputs.write_text(json.dumps({"npu_path": dump, "bench_path": dump}))
    out = tmp_path / "o"
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorprobe", "compare", str(inputs), "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    # A line for each call: nobody reads those of the second rank, so that it waits for us.
    for _ in range(10):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert error == (
        "tensorprobe: interrupted; compared: step0/rank0; their files are whole; "
        "not compared: step0/rank1, step0/rank2\n"
    )
    (table,) = out.glob("compare_result_rank*.xlsx")
    assert "rank0" in table.name and zipfile.ZipFile(table).testzip() is None


@pytest.mark.parametrize("jobs", ["0", "-2"])
def test_too_few_jobs_are_one_line_and_code_2(
    pair: tuple[str, str], tmp_path: Path, jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *pair, "-o", str(tmp_path / "o"), "--jobs", jobs]) == 2
    error = capsys.readouterr().err
    assert f"--jobs is {jobs}, wanted 1 or more" in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_what_goes_into_a_call_that_overwrites_it_is_not_the_first_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = []
    for side, number in (("a", 9.0), ("b", 1.0)):
        calls = [
            call("Tensor.zero_.0.forward", [tensor(number)], [tensor(0.0)]),
            call(RELU, [tensor(1.0)], [tensor(number)]),
        ]
        sides.append(str(write_dump(tmp_path / side, calls)))
    assert main(["compare", *sides, "-o", str(tmp_path / "o"), "--no-blame"]) == 0
    assert f"first that fails: {RELU}.output.0" in capsys.readouterr().out


def test_the_first_difference_of_every_step_is_shown(tmp_path: Path) -> None:
    for side, number in (("a", 9.0), ("b", 1.0)):
        for step in (0, 1):
            calls = [call(f"Torch.relu.{step}.forward", [tensor(1.0)], [tensor(number)])]
            write_dump(tmp_path / side / f"step{step}" / "rank0", calls)
    out = tmp_path / "o"
    sides = [str(tmp_path / side) for side in ("a", "b")]
    assert main(["compare", *sides, "-o", str(out), "--first-diff", "--no-blame"]) == 0
    (found,) = out.glob("diff_analyze*")
    nodes = json.loads(found.read_text())
    assert {name: node[0]["op_name"] for name, node in nodes.items()} == {
        "step_0_rank_0": "Torch.relu.0.forward",
        "step_1_rank_0": "Torch.relu.1.forward",
    }


def test_runs_of_two_models_are_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = []
    for side in ("a", "b"):
        calls = [call(f"Torch.{side}.{number}.forward", [tensor(1.0)]) for number in range(5)]
        sides.append(str(write_dump(tmp_path / side, calls)))
    # Where nothing could be compared nothing failed, but that is not well.
    assert main(["compare", *sides, "-o", str(tmp_path / "o"), "--no-blame"]) == 2
    captured = capsys.readouterr()
    assert "most values have no partner" in captured.out
    assert "and 7 more, all in the tables" in captured.out
    assert "rank: nothing was compared, as no value of the candidate has" in captured.err


def test_what_is_unmatched_is_counted_as_it_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relu = call(RELU, [tensor(1.0)], [tensor(1.0)])
    lone = call("Torch.a.0.forward", [tensor(1.0)] * 6, [tensor(1.0)])
    sides = [
        str(write_dump(tmp_path / side, calls))
        for side, calls in (("a", [relu, lone]), ("b", [relu]))
    ]
    assert main(["compare", *sides, "-o", str(tmp_path / "o")]) == 0
    text = capsys.readouterr().out
    assert "unmatched: 7 values of the candidate" in text
    assert "    Torch.a.0.forward: the reference has no such call\n" in text
    assert "more, all in the tables" not in text


def test_a_dump_json_without_its_tensors_is_compared_by_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {RELU: {"input": [np.ones(3, np.float32)], "output": [np.ones(4, np.float32)]}}
    sides = [write_data(tmp_path / side, data) for side in ("a", "b")]
    for file in (sides[1] / "dump_tensor_data").iterdir():
        file.unlink()
    (sides[1] / "dump_tensor_data").rmdir()
    assert main(["compare", *map(str, sides), "-o", str(tmp_path / "o"), "--no-blame"]) == 2
    captured = capsys.readouterr()
    assert "2 values compared by statistics: 2 passed, 0 failed" in captured.out
    assert captured.err.count("\n") == 1
    assert "b/dump.json: the folder with its tensors is missing" in captured.err


def test_the_log_of_many_ranks_says_whose_calls_these_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("a", "b"):
        for rank in (0, 1):
            calls = [call(RELU, [tensor(1.0), None], [tensor(1.0)])]
            write_dump(tmp_path / side / "step0" / f"rank{rank}", calls, rank=rank)
    config = tmp_path / "compare.json"
    fields = {"npu_path": str(tmp_path / "a/step0"), "bench_path": str(tmp_path / "b/step0")}
    config.write_text(json.dumps(fields))
    assert main(["compare", str(config), "-o", str(tmp_path / "o"), "--no-blame"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "step0/rank0:",
        f"{RELU}: 3 passed",
        "step0/rank1:",
        f"{RELU}: 3 passed",
    ]


def test_the_log_goes_into_a_file_although_a_bar_is_shown(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    config, log = tmp_path / "compare.json", tmp_path / "log"
    config.write_text(json.dumps({"npu_path": pair[0], "bench_path": pair[1]}))
    terminal, stderr = pty.openpty()
    with log.open("wb") as file:
        code = subprocess.run(
            [sys.executable, "-m", "tensorprobe", "compare", str(config), "-o", str(tmp_path)],
            stdout=file,
            stderr=stderr,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"},
        ).returncode
    os.close(stderr)
    shown = os.read(terminal, 1 << 16).decode(errors="replace")
    os.close(terminal)
    assert code == 0 and "%" in shown
    assert f"{RELU}: 1 passed, 1 failed" in log.read_text() and RELU not in shown


def test_a_mapping_that_names_nothing_is_told(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(f"{RELU}.input.7: {RELU}.input.0\n")
    options = ("--mapping", str(mapping), "-o", str(tmp_path / "o"), "--no-blame")
    assert main(["compare", *pair, *options]) == 2
    assert f"the mapping names {RELU}.input.7, which is not there" in capsys.readouterr().err
    mapping.write_text(f"{RELU}: {RELU}\n")
    assert main(["compare", *pair, *options]) == 2
    complaint = f"the mapping names {RELU}, which is a whole call; name its values, such as {RELU}"
    assert capsys.readouterr().err.count(complaint) == 2
