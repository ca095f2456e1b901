"""Normal or abnormal: every overflow is made again on the CPU, forward and backward."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from overflow_runs import FaultyDevice, search, try_search
from tensorprobe import PrecisionDebugger
from tensorprobe.capture.current import current_debugger
from tensorprobe.cli import main
from tensorprobe.errors import ConfigError
from tensorprobe.overflow import OverflowReport

aten = torch.ops.aten


def judge(tmp_path: Path, run: Callable[[], Any], **options: Any) -> OverflowReport:
    search(tmp_path / "dump", run, **options)
    return tensorprobe.overflow(tmp_path / "dump", tmp_path / "out")


def sentences(report: OverflowReport) -> list[str]:
    return [overflow.sentence for overflow in report.overflows]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_the_cpu_does_too_is_normal(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 200.0], dtype=dtype)
    report = judge(tmp_path, lambda: (torch.exp(x), x / 0, torch.log(x * 0)))
    assert sentences(report) == [
        "The Torch.exp.0 overflow is a normal overflow.",
        "The Tensor.__truediv__.0 overflow is a normal overflow.",
        "The Torch.log.0 overflow is a normal overflow.",
    ]
    assert not report.has_abnormal


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_the_cpu_does_not_do_is_abnormal(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0], dtype=dtype)

    def run() -> None:
        with FaultyDevice(aten.exp.default):
            torch.exp(x)
        torch.exp(x * 1000)

    report = judge(tmp_path, run)
    assert sentences(report) == [
        "The Torch.exp.0 overflow is an abnormal overflow.",
        "The Torch.exp.1 overflow is a normal overflow.",
    ]
    assert report.has_abnormal
    assert report.overflows[0].replay.on_cpu == "finite"


def test_a_device_that_cuts_off_at_its_limit_is_abnormal_where_the_cpu_does_not(
    tmp_path: Path,
) -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)

    def run() -> None:
        with FaultyDevice(aten.exp.default, 65504.0):
            torch.exp(x)
        with FaultyDevice(aten.mul.Tensor, 65504.0):
            torch.mul(x.flip(0), 50000.0)

    report = judge(tmp_path, run)
    assert [(o.found.kind, o.verdict) for o in report.overflows] == [
        ("saturated", "abnormal"),
        ("saturated", "normal"),
    ]


def test_a_sum_that_overflows_only_in_between_says_so(tmp_path: Path) -> None:
    x = torch.tensor([60000.0, 60000.0, -60000.0, -60000.0], dtype=torch.float16)
    report = judge(tmp_path, lambda: torch.cumsum(x, 0))
    (overflow,) = report.overflows
    assert overflow.verdict == "normal"
    assert overflow.replay.exact == "up to 120000 in torch.float32, beyond torch.float16 (65504)"


_CONVERSIONS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.dtype, float]] = {
    "to": (lambda x: x.to(torch.float8_e4m3fn), torch.float8_e4m3fn, 448),
    "copy_": (
        lambda x: torch.zeros(2, dtype=torch.float8_e4m3fn).copy_(x),
        torch.float8_e4m3fn,
        448,
    ),
    "half": (lambda x: x.half(), torch.float16, 65504),
}


@pytest.mark.parametrize("api", _CONVERSIONS)
def test_a_conversion_is_measured_by_the_dtype_it_converts_to(tmp_path: Path, api: str) -> None:
    convert, dtype, limit = _CONVERSIONS[api]
    x = torch.tensor([1.0, 90000.0])
    (overflow,) = judge(tmp_path, lambda: convert(x)).overflows
    assert overflow.shown == f"Tensor.{api}.0"
    assert overflow.verdict == "normal"
    assert overflow.replay.exact == f"up to 90000 in torch.float32, beyond {dtype} ({limit:g})"
    assert overflow.replay.message == ""


def test_a_conversion_that_fits_is_abnormal_if_it_overflows(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 100.0])

    def run() -> None:
        with FaultyDevice(aten._to_copy.default):
            x.half()

    (overflow,) = judge(tmp_path, run).overflows
    assert (overflow.verdict, overflow.replay.exact) == ("abnormal", "up to 100 in torch.float32")


def test_a_call_in_place_is_judged_by_what_was_there_before(tmp_path: Path) -> None:
    x = torch.tensor([2.0, 60000.0], dtype=torch.float16)
    y = torch.tensor([2.0, 6.0], dtype=torch.float16)

    def run() -> None:
        x.mul_(2)
        with FaultyDevice(aten.mul_.Tensor):
            y.mul_(2)

    assert sentences(judge(tmp_path, run)) == [
        "The Tensor.mul_.0 overflow is a normal overflow.",
        "The Tensor.mul_.1 overflow is an abnormal overflow.",
    ]


def test_backward_calls_are_judged_too(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = torch.tensor([0.5, 1.0], requires_grad=True)

    def run() -> None:
        with FaultyDevice(aten.tanh_backward.default):
            (torch.sqrt(x) + torch.tanh(y)).sum().backward()

    report = judge(tmp_path, run)
    assert sorted(sentences(report)) == [
        "The Torch.sqrt.0.backward overflow is a normal overflow.",
        "The Torch.tanh.0.backward overflow is an abnormal overflow.",
    ]


def test_an_operator_at_l2_is_judged_in_both_directions(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    report = judge(tmp_path, lambda: (torch.sqrt(x) / 0).sum().backward(), level="L2")
    assert "The Aten.div.Tensor.0 overflow is a normal overflow." in sentences(report)
    assert {overflow.verdict for overflow in report.overflows} == {"normal"}


def test_a_module_is_not_judged_and_says_what_to_do(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    x = torch.full((1, 2), 3e38) * torch.tensor([1.0, 1.0])
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        report = judge(tmp_path, lambda: model(x), level="L0", model=model)
    assert [overflow.verdict for overflow in report.overflows] == ["not judged"] * 2
    assert sentences(report)[0] == (
        "The Module.0.Linear.forward.0 overflow is not judged: the code of a module is not in a "
        "dump; capture with level L1 or mix, which record the calls inside it"
    )


def test_without_data_an_overflow_is_normal_or_not_judged(tmp_path: Path) -> None:
    x = torch.tensor([1e30, 2e30])
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump")
    debugger.start()
    torch.mul(x, 1e30)
    with FaultyDevice(aten.tanh.default):
        torch.tanh(x)
    debugger.stop()
    debugger.close()
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path)
    assert [overflow.verdict for overflow in report.overflows] == ["normal", "not judged"]
    assert "random data" in report.overflows[0].replay.message


def test_without_data_a_backward_is_judged_with_numbers_of_its_range(tmp_path: Path) -> None:
    x = torch.zeros(2, requires_grad=True)
    y = torch.tensor([0.5, 1.0], requires_grad=True)
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump")
    debugger.start()
    with FaultyDevice(aten.tanh_backward.default):
        (torch.sqrt(x) + torch.tanh(y)).sum().backward()
    debugger.stop()
    debugger.close()
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path)
    found = {overflow.name: overflow for overflow in report.overflows}
    sqrt, tanh = found["Torch.sqrt.0.backward"], found["Torch.tanh.0.backward"]
    assert sqrt.verdict == "normal"
    assert sqrt.replay.message == "with random data within the recorded range"
    assert tanh.verdict == "not judged"
    assert "random data within the recorded range do not overflow" in tanh.replay.message


def test_the_tools_own_replay_on_a_device_is_shown(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0])

    def run() -> None:
        with FaultyDevice(aten.exp.default):
            torch.exp(x)

    search(tmp_path / "dump", run)
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path, device="cpu")
    assert report.overflows[0].replay.on_device == "finite"
    assert report.overflows[0].replay.message == "it does not happen again on cpu"
    with pytest.raises(ConfigError, match="the device 'toaster:0' cannot be used here"):
        tensorprobe.overflow(tmp_path / "dump", tmp_path, device="toaster:0")


def test_a_random_call_is_not_blamed_for_other_random_numbers(tmp_path: Path) -> None:
    x = torch.ones(8)

    def run() -> None:
        with FaultyDevice(aten.bernoulli_.float):
            torch.nn.functional.dropout(x, 0.5)

    report = judge(tmp_path, run)
    assert sentences(report) == [
        "The Functional.dropout.0 overflow is not judged: it draws random numbers, and those of "
        "the CPU do not overflow"
    ]


def test_where_rounding_decides_nobody_is_blamed(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)

    def run() -> None:
        with FaultyDevice(aten.mul.Tensor):
            torch.mul(x, 65480.0 / 2)

    (overflow,) = judge(tmp_path, run).overflows
    assert overflow.verdict == "normal"
    assert overflow.replay.message == (
        "the exact result is so near the limit that rounding decides"
    )


# --- dumps of the older tools ----------------------------------------------------------------


def test_a_dump_of_msprobe_is_judged_call_by_call(tmp_path: Path, peer_dumps: Path) -> None:
    path = peer_dumps / "msprobe-8.2.1" / "overflow" / "L1" / "npu"
    report = tensorprobe.overflow(path, tmp_path)
    assert sentences(report) == [
        f"The {name} overflow is a normal overflow."
        for name in ("Torch.log.0", "Torch.div.0", "Torch.roll.0")
    ]


def test_forward_info_of_the_oldest_tool_is_judged(tmp_path: Path) -> None:
    folder = tmp_path / "forward_real_data" / "rank7"
    folder.mkdir(parents=True)
    entries = {}
    values = (("Torch*exp*0", 1000.0), ("Torch*exp*1", 1.0), ("Torch*argmax*0", 1.0))
    for name, value in values:
        torch.save(torch.tensor([value]), folder / f"{name}.0.pt")
        leaf = {
            "type": "torch.Tensor",
            "datapath": f"forward_real_data/rank7/{name}.0.pt",
            "requires_grad": False,
        }
        entries[name] = {"args": [leaf], "kwargs": {}}
    (tmp_path / "forward_info_7.json").write_text(json.dumps(entries))
    (tmp_path / "backward_info_7.json").write_text("{}")
    report = tensorprobe.overflow(tmp_path / "forward_info_7.json", tmp_path)
    assert sentences(report) == [
        "The Torch.exp.0 overflow is a normal overflow.",
        "The Torch.exp.1 overflow is an abnormal overflow.",
        "The Torch.argmax.0 overflow is not judged: its results are no floating-point numbers",
    ]
    report = tensorprobe.overflow(tmp_path / "forward_info_7.json", tmp_path, device="cpu")
    assert [overflow.verdict for overflow in report.overflows][1] == "not judged"


# --- the command -----------------------------------------------------------------------------


def test_the_command_prints_the_sentences_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.tensor([1.0, 2.0])

    def run() -> None:
        torch.log(x * 0)
        with FaultyDevice(aten.exp.default):
            torch.exp(x)

    search(tmp_path / "dump", run)
    code = main(["overflow", str(tmp_path / "dump"), "-o", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert lines[:5] == [
        "step0/rank:",
        "The Torch.log.0 overflow is a normal overflow.",
        "The Torch.exp.0 overflow is an abnormal overflow.",
        "1 normal, 1 abnormal",
        "The first call that made a value that is not finite: Torch.log.0.forward in step0/rank, "
        "from [0, 0] to [-inf, -inf]",
    ]
    (path,) = (tmp_path / "out").glob("overflow_check_result_*.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["API Name"], row["Verdict"], row["Overflow"]) for row in rows] == [
        ("Torch.log.0.forward", "normal", "nonfinite"),
        ("Torch.exp.0.forward", "abnormal", "nonfinite"),
    ]
    assert rows[0]["Input range"] == "[0, 0]"
    assert rows[0]["CPU, higher precision"] == "not finite in torch.float64 either"
    assert __file__ in rows[0]["Stack"]


def test_a_dump_without_overflows_exits_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump")
    debugger.start()
    torch.tanh(torch.ones(2))
    debugger.stop()
    debugger.close()
    assert main(["overflow", str(tmp_path / "dump"), "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No call overflowed.\n")


def test_a_path_without_a_dump_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["overflow", str(tmp_path / "nothing"), "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["overflow", "--help"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Exit code" in line]
    assert line.startswith("Exit code 0: ")
    assert " 1: " in line
    assert " 2: " in line


def test_the_search_and_the_judgement_agree_after_many_steps(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0])
    try_search(tmp_path / "dump", lambda: (torch.log(x), torch.exp(x)), steps=3)
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path)
    assert [(o.part, o.shown) for o in report.overflows] == [
        (f"step{step}/rank", "Torch.log.0") for step in range(3)
    ]
    assert report.origins[0].part == "step0/rank"


_ODD_OPS = """
import os, signal, time
import torch

__all__ = ["dies", "fine", "hangs"]

def is_replayed():
    return "OVERFLOW_TEST_FAULTS" in os.environ

def dies(x):
    if is_replayed():
        os.kill(os.getpid(), signal.SIGSEGV)
    return torch.exp(x)

def hangs(x):
    if is_replayed():
        time.sleep(120)
    return torch.exp(x)

def fine(x):
    return torch.exp(x)
"""


def test_a_call_that_dies_or_hangs_costs_that_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd_overflows_of_test.py").write_text(_ODD_OPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import odd_overflows_of_test as ops

    names = ("fine", "dies", "hangs")
    x = torch.tensor([1.0, 200.0])

    def run() -> None:
        debugger = current_debugger()
        assert debugger is not None
        for name in names:
            debugger.register_custom_api(ops, name)
        for name in (*names, "fine"):
            getattr(ops, name)(x)
        for name in names:
            debugger.restore_custom_api(ops, name)

    search(tmp_path / "dump", run)
    monkeypatch.setenv("OVERFLOW_TEST_FAULTS", "1")
    monkeypatch.chdir(tmp_path)
    module = "odd_overflows_of_test"
    assert main(["overflow", "dump", "--import", module, "--timeout", "10"]) == 0
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if module in line and line.startswith("The ")]
    assert lines[0] == f"The {module}.fine.0 overflow is a normal overflow."
    assert lines[1].startswith(f"The {module}.dies.0 overflow is not judged: ")
    assert "died of SIGSEGV" in lines[1]
    assert "no answer within 10 s" in lines[2]
    assert lines[3] == f"The {module}.fine.1 overflow is a normal overflow."
    (path,) = tmp_path.glob("overflow_check_result_*.csv")
    assert path.read_text(encoding="utf-8-sig").count("not judged") == 2
