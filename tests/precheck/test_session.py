"""A whole pre-check: data, crashes, hangs, several workers, resuming, the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from precheck_models import Capture, capture_into, train_a_little

import tensorprobe
from conftest import REPOSITORY
from tensorprobe.cli import main
from tensorprobe.errors import ConfigError, DumpError, TensorprobeError
from tensorprobe.precheck import PrecheckReport
from tensorprobe.precheck.checked_call import CheckedCall, CheckedOutput, RandomDraw
from tensorprobe.precheck.judge import Judgement
from tensorprobe.precheck.repro import save_error
from tensorprobe.replay.both_sides import Repetition
from tensorprobe.replay.pool import idle_workers
from tensorprobe.replay.rebuild import RebuiltCall

OPS = '''
import os, signal, time

__all__ = ["dies", "fine", "hangs", "wrong"]

def fine(x):
    return x * 2

def dies(x):
    if os.environ.get("PRECHECK_TEST_FAULTS"):
        os.kill(os.getpid(), signal.SIGILL)
    return x + 1

def hangs(x):
    if os.environ.get("PRECHECK_TEST_FAULTS"):
        time.sleep(60)
    return x + 2

def wrong(x):
    result = x * 3
    if os.environ.get("PRECHECK_TEST_FAULTS") and str(x.dtype) == "torch.float32":
        result = result * 1.01
    return result
'''  # fmt: skip


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


@pytest.fixture
def train(capture: Capture) -> Path:
    return Path(capture(train_a_little).path)


@pytest.fixture
def odd_ops(tmp_path: Path, capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dump with calls of a module whose functions misbehave, but not while captured."""
    folder = tmp_path / "ops"
    folder.mkdir()
    (folder / "odd_ops_of_test.py").write_text(OPS)
    monkeypatch.syspath_prepend(str(folder))
    paths = [str(folder), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    import odd_ops_of_test as ops

    names = ("fine", "dies", "hangs", "wrong")

    def run() -> None:
        from tensorprobe.capture.current import current_debugger

        debugger = current_debugger()
        assert debugger is not None
        for name in names:
            debugger.register_custom_api(ops, name)
        with torch._C.DisableTorchFunction():
            given = torch.randn(64)
        for name in (*names, "fine"):
            getattr(ops, name)(given)
        for name in names:
            debugger.restore_custom_api(ops, name)

    path = Path(capture(run).path)
    monkeypatch.setenv("PRECHECK_TEST_FAULTS", "1")
    return path


def verdicts(report: PrecheckReport) -> dict[str, str]:
    return {line.name: line.verdict for line in report.lines}


def test_a_device_that_is_not_there_leaves_no_files(train: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="toaster"):
        tensorprobe.precheck(train, tmp_path / "o", devices=["toaster"])
    assert not list((tmp_path / "o").glob("*.csv"))


@pytest.mark.parametrize("data", [None, "real", "random"])
def test_a_right_device_has_no_errors(train: Path, tmp_path: Path, data: str | None) -> None:
    report = tensorprobe.precheck(train, tmp_path / "out", devices=["cpu"], data=data)
    assert report.lines and not report.has_errors, report.worst_first()
    names = verdicts(report)
    assert names["Functional.linear.0"] == "pass"
    assert names["Functional.dropout.0"] == "pass"
    backward = {line.name: line.backward for line in report.lines}
    assert backward["Functional.linear.0"] == "pass"
    assert backward["Functional.cross_entropy.0"] == "pass"
    text = report.details_paths[0].read_text(encoding="utf-8-sig")
    assert 'Functional.linear.0.backward.output.1,torch.float64,torch.float32,"(16, 8)"' in text


def test_a_worker_waits_for_the_next_check_unless_it_may_write(train: Path, tmp_path: Path) -> None:
    def processes() -> set[int]:
        return {worker.process_id for worker in idle_workers() if "precheck" in worker.module}

    tensorprobe.precheck(train, tmp_path / "1", devices=["cpu"])
    waiting = processes()
    assert waiting
    # It cannot write any more, and this one must.
    tensorprobe.precheck(train, tmp_path / "2", devices=["cpu"], save_errors=tmp_path / "errors")
    assert processes() == waiting
    tensorprobe.precheck(train, tmp_path / "3", devices=["cpu"])
    assert processes() == waiting


def test_a_dump_may_be_named_from_the_current_folder(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(train.parent)
    report = tensorprobe.precheck(train.name, tmp_path / "out", devices=["cpu"], include=["linear"])
    assert report.counts["pass"] == len(report.lines) > 0


def test_statistics_alone_are_enough(capture: Capture, tmp_path: Path) -> None:
    part = capture(train_a_little, task="statistics")
    report = tensorprobe.precheck(part.path, tmp_path, devices=["cpu"])
    assert not report.has_errors and report.counts["pass"] > 5
    with pytest.raises(ConfigError, match="data is 'fake'"):
        tensorprobe.precheck(part.path, tmp_path, data="fake")


def test_what_a_call_draws_does_not_resemble_inputs_that_were_made_up(
    capture: Capture, tmp_path: Path
) -> None:
    def run() -> None:
        with torch._C.DisableTorchFunction():
            given = torch.randn(64, 64)
        torch.nn.functional.gumbel_softmax(given)
        torch.nn.functional.alpha_dropout(given, 0.3, True)

    part = capture(run, task="statistics")
    for seed in (1, 1234):
        report = tensorprobe.precheck(part.path, tmp_path, devices=["cpu"], seed=seed)
        assert report.counts["pass"] >= 2 and not report.has_errors, report.worst_first()


def check_odd_ops(dump: Path, output: Path, **options: Any) -> PrecheckReport:
    names = ["fine", "dies", "hangs"]
    return tensorprobe.precheck(
        dump, output, devices=["cpu"], imports=["odd_ops_of_test"], include=names, **options
    )


def test_a_call_that_dies_or_hangs_costs_that_call_alone(odd_ops: Path, tmp_path: Path) -> None:
    report = check_odd_ops(odd_ops, tmp_path, timeout=8)
    lines = {line.name.removeprefix("odd_ops_of_test."): line for line in report.lines}
    assert [lines[name].verdict for name in ("fine.0", "fine.1")] == ["pass", "pass"]
    assert lines["dies.0"].verdict == "error"
    assert "died of SIGILL" in lines["dies.0"].message
    assert "ONEDNN_MAX_CPU_ISA" in lines["dies.0"].message
    assert lines["hangs.0"].verdict == "error"
    assert "no answer within 8 s" in lines["hangs.0"].message


def test_a_failing_call_is_kept_with_a_script_that_repeats_it(
    odd_ops: Path, tmp_path: Path
) -> None:
    report = tensorprobe.precheck(
        odd_ops,
        tmp_path,
        devices=["cpu"],
        imports=["odd_ops_of_test"],
        include=["wrong", "fine"],
        save_errors=tmp_path / "errors",
    )
    assert report.counts["error"] == 1
    (folder,) = (tmp_path / "errors").iterdir()
    assert folder.name == "odd_ops_of_test.wrong.0"
    (wrong,) = report.worst_first()
    assert wrong.message.endswith(f"saved in {folder}")
    answer = subprocess.run(
        [sys.executable, str(folder / "repro.py")], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1, answer.stderr
    assert "forward.output.0: distance 1.000e-02" in answer.stdout
    assert "FAILED" in answer.stdout
    answer = subprocess.run(
        [sys.executable, str(folder / "repro.py")],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith("No module named 'odd_ops_of_test'; its folder must be")


def test_the_script_of_a_random_call_compares_distributions(tmp_path: Path) -> None:
    """The seeds of both sides differ by one, so a fault at odd ones is on one side alone."""
    given = torch.ones(4096)
    module = tmp_path / "odd_draws_of_test.py"
    module.write_text(
        "import torch\ndef draw(x):\n"
        "    return torch.rand_like(x) * (0.5 if torch.initial_seed() % 2 else 1.0)\n"
    )
    for seed, limit in ((7, 0.06), (7, 0.9)):
        judgement = Judgement("error", "", limit=limit)
        checked = CheckedCall(
            "error",
            outputs=(CheckedOutput("forward.output.0", None, None, judgement),),
            repetition=Repetition(
                call=RebuiltCall(torch.rand_like, (given,), {}, "torch.rand_like")
            ),
            draw=RandomDraw(seed),
        )
        folder = save_error(
            tmp_path / "errors", "Torch.rand_like.0.forward", checked, device=torch.device("cpu")
        )
        script = folder / "repro.py"
        text = script.read_text().replace("torch.rand_like", "odd_draws_of_test.draw")
        script.write_text(text.replace("import torch\n", "import torch, odd_draws_of_test\n", 1))
        answer = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == (1 if limit < 0.5 else 0), answer.stderr
        assert (
            "forward.output.0: judged by its distribution: the largest gap is 0.5" in answer.stdout
        )


def test_a_call_that_dies_or_hangs_is_kept_too(odd_ops: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    report = check_odd_ops(odd_ops, tmp_path, timeout=5, save_errors=errors)
    assert [line.verdict for line in report.lines] == ["pass", "error", "error", "pass"]
    for line in report.lines[1:3]:
        folder = errors / line.name
        assert line.message.endswith(f"saved in {folder}")
        assert torch.load(folder / "tensors.pt", weights_only=True)["input.0"].shape == (64,)
    command = [sys.executable, str(errors / "odd_ops_of_test.dies.0" / "repro.py")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGILL
    healthy = {**os.environ, "PRECHECK_TEST_FAULTS": ""}
    assert subprocess.run(command, env=healthy, check=False).returncode == 0
    details = report.details_paths[0].read_text(encoding="utf-8-sig")
    assert "odd_ops_of_test.dies.0.forward,,,," in details
    assert "no answer within 5 s" in details


def test_two_workers_write_in_the_same_order_as_one(train: Path, tmp_path: Path) -> None:
    one = tensorprobe.precheck(train, tmp_path / "one", devices=["cpu"])
    two = tensorprobe.precheck(train, tmp_path / "two", devices=["cpu", "cpu"], jobs=2)
    # Two share the cores, and a sum by fewer threads has other last bits; not the verdicts.
    assert one.result_paths[0].read_bytes() == two.result_paths[0].read_bytes()
    lines = [
        [line.partition(",")[0] for line in report.details_paths[0].read_text().splitlines()]
        for report in (one, two)
    ]
    assert lines[0] == lines[1]


def test_a_killed_run_is_resumed_to_the_same_files(train: Path, tmp_path: Path) -> None:
    whole = tensorprobe.precheck(train, tmp_path / "whole", devices=["cpu"])
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "tensorprobe", "precheck", str(train), "-o", str(folder)]
    process = subprocess.Popen(
        [*command, "--device", "cpu"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )
    result = None
    for _ in range(3000):
        found = list(folder.glob("accuracy_checking_result_*.csv"))
        if found and found[0].read_bytes().count(b"\n") >= 4:
            result = found[0]
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert result is not None
    resumed = tensorprobe.precheck(train, devices=["cpu"], resume=result)
    assert resumed.counts == whole.counts
    assert result.read_bytes() == whole.result_paths[0].read_bytes()
    assert resumed.details_paths[0].read_bytes() == whole.details_paths[0].read_bytes()
    with pytest.raises(DumpError, match="other calls than this dump"):
        tensorprobe.precheck(train, devices=["cpu"], resume=result, include=["cross"])
    with pytest.raises(ConfigError, match="leave out the folder"):
        tensorprobe.precheck(train, tmp_path / "other", devices=["cpu"], resume=result)


def test_equal_calls_are_checked_once(capture: Capture, tmp_path: Path) -> None:
    def run() -> None:
        with torch._C.DisableTorchFunction():
            inputs = [torch.randn(4, 4) for _ in range(5)]
        for given in inputs:
            torch.relu(given)
        torch.relu(inputs[0].double())

    part = capture(run)
    report = tensorprobe.precheck(
        part.path, tmp_path, devices=["cpu"], dedupe=True, include=["Torch.relu"]
    )
    assert [line.name for line in report.lines] == ["Torch.relu.0", "Torch.relu.5"]
    assert report.stands_for == 6
    assert "stands for 5 calls" in report.lines[0].message
    with pytest.raises(DumpError, match="begun with --dedupe"):
        tensorprobe.precheck(
            part.path, devices=["cpu"], include=["Torch.relu.0"], resume=cut(report.result_paths[0])
        )


def cut(result: Path) -> Path:
    """Leave one call in a result file."""
    result.write_bytes(b"".join(result.read_bytes().splitlines(keepends=True)[:2]))
    return result


def test_a_dump_of_modules_alone_is_refused(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch._C.DisableTorchFunction():
        model = torch.nn.Linear(2, 2)

    def run() -> None:
        model(torch.ones(1, 2))

    part = capture(run, level="L0", model=model)
    out = tmp_path / "results"
    assert main(["precheck", str(part.path), "-o", str(out), "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert "capture at level L1 or mix" in said.err and not said.out
    assert not out.exists()


def test_the_command(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["precheck", str(train), "-o", str(tmp_path), "--device", "cpu",
                 "--include", "linear", "--exclude", "*.linear.1.*"])  # fmt: skip
    assert code == 0
    shown = capsys.readouterr().out
    assert "1 calls: 1 pass" in shown and "accuracy_checking_result_" in shown


def test_the_command_fails_when_a_call_does(
    odd_ops: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["precheck", str(odd_ops), "-o", str(tmp_path), "--device", "cpu",
                 "--import", "odd_ops_of_test", "--include", "wrong"]  # fmt: skip
    assert main(arguments) == 1
    assert "odd_ops_of_test.wrong.0" in capsys.readouterr().out


def test_what_cannot_be_used_is_one_line(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["precheck", str(train), "-o", str(tmp_path)]
    assert main([*arguments, "--device", "nonsense"]) == 2
    assert "the device 'nonsense' cannot be used here" in capsys.readouterr().err
    assert main([*arguments, "--import", "no_such_module"]) == 2
    assert "the module no_such_module cannot be imported" in capsys.readouterr().err
    assert main([*arguments, "--resume", str(tmp_path / "nothing.csv")]) == 2
    with pytest.raises(TensorprobeError):
        tensorprobe.precheck(tmp_path / "nowhere")
    capsys.readouterr()
    file = tmp_path / "file"
    file.write_text("")
    assert main(["precheck", str(train), "-o", str(file / "in it")]) == 2
    assert f"the folder {file / 'in it'} cannot be made" in capsys.readouterr().err
    assert main([*arguments, "--save-errors", str(file)]) == 2
    assert f"the folder {file} cannot be made" in capsys.readouterr().err
    before = sorted(tmp_path.iterdir())
    assert main([*arguments, "--include", "no_such_call", "--exclude", "linear"]) == 2
    assert "no call of the dump fits" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_data_that_cannot_be_read_cost_that_call_and_the_exit_code_says_so(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = train.parent.rglob("Functional.linear.0.forward.input.0.pt")
    file.write_bytes(file.read_bytes()[:100])
    arguments = ["precheck", str(train), "-o", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--include", "Functional.linear"]) == 2
    said = capsys.readouterr()
    assert "2 calls: 1 pass, 1 SKIP" in said.out
    assert said.err.startswith("missing:") and file.name in said.err


def test_legacy_files_are_checked(peer_dumps: Path, tmp_path: Path) -> None:
    (path,) = sorted(peer_dumps.glob("api_accuracy_checker/2023-11/statistics/forward_info_*.json"))
    report = tensorprobe.precheck(path, tmp_path, devices=["cpu"])
    assert not report.has_errors, report.worst_first()
    assert report.counts["pass"] > 20
    assert {line.backward for line in report.lines if "conv2d" in line.name} == {"pass"}
