"""A replay that ends its process, never ends, or wants too much costs blame one call."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hostile import call, value, write_data, write_dump

from tensorprobe.blame.run import investigate
from tensorprobe.replay.pool import idle_workers

GIVEN = torch.linspace(0.1, 1, 8)


def dump_with(folder: Path, odd: dict[str, Any], *, error: float) -> Path:
    """Write a run in which exp is off by so much, behind an odd call that agrees in both runs."""
    given = write_data(folder, "given.pt", GIVEN)
    odd_call = {**odd, "input_args": [given, *odd["input_args"]], "output": [given]}
    off = write_data(folder, "exp.pt", GIVEN.exp() * (1 + error))
    calls = {
        f"{odd['name']}.0.forward": odd_call,
        "Torch.exp.0.forward": call(given, outputs=[off]),
    }
    return write_dump(folder, calls, task="tensor")


ENDLESS = {"name": "Torch.special.laguerre_polynomial_l", **call(value(2**52))}
TOO_MUCH = {"name": "Tensor.repeat", **call(value(10**12))}


def dumps_with(folder: Path, odd: dict[str, Any]) -> list[Path]:
    return [
        dump_with(folder / side, odd, error=error)
        for side, error in (("candidate", 1e-4), ("reference", 0.0))
    ]


@pytest.mark.parametrize(
    ("odd", "told"), [(ENDLESS, "no answer within 3 s"), (TOO_MUCH, "its result would take")]
)
def test_the_culprit_is_named_and_the_odd_call_is_told(
    odd: dict[str, Any], told: str, tmp_path: Path
) -> None:
    found = investigate(*dumps_with(tmp_path, odd), timeout=3)
    assert found.conclusion.culprit == "Torch.exp.0.forward"
    assert found.conclusion.first is not None
    assert found.conclusion.first.confidence == "certain"
    unreplayed = found.ordered[0].analysis.context.unreplayed
    assert list(unreplayed) == [f"{odd['name']}.0.forward"]
    assert told in next(iter(unreplayed.values()))


def kill_what_computes(of: int) -> None:
    """End the first process below another that computes and does not end, as a fault would."""
    until = time.monotonic() + 60
    since: dict[int, float] = {}
    while time.monotonic() < until:
        for process in psutil.Process(of).children():
            if "tensorprobe.blame.worker" not in process.cmdline() or not is_confined(process.pid):
                continue
            # Ready, and far longer than the other call takes.
            computed = process.cpu_times().user
            if computed - since.setdefault(process.pid, computed) > 0.5:
                process.send_signal(signal.SIGSEGV)
                return
        time.sleep(0.02)


def is_confined(pid: int) -> bool:
    """Whether a worker has given up its rights: it has imported all that it needs, and begins."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "NoNewPrivs:\t1" in status


@pytest.mark.parametrize("command", ["blame", "compare"])
def test_a_call_that_dies_does_not_end_the_command(command: str, tmp_path: Path) -> None:
    options = [] if command == "blame" else ["-o", str(tmp_path / "results"), "--blame"]
    with subprocess.Popen(
        [sys.executable, "-m", "tensorprobe", command, *dumps_with(tmp_path, ENDLESS), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        kill_what_computes(process.pid)
        printed, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert "culprit     Torch.exp.0.forward.output.0" in printed
    assert "judged by distances, as they cannot be replayed: 1 call" in printed


def test_the_process_of_one_answer_serves_the_next(tmp_path: Path) -> None:
    """Importing torch anew would take longer than the replays."""
    dumps = dumps_with(tmp_path, TOO_MUCH)
    first = investigate(*dumps)
    processes = {worker.process_id for worker in idle_workers()}
    again = investigate(*dumps)
    assert first.conclusion == again.conclusion
    assert processes and {worker.process_id for worker in idle_workers()} == processes
