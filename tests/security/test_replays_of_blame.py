"""A replay that ends its process, never ends, or wants too much costs blame one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import call, run, value, write_data, write_dump

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


# What becomes of each, as its record is then told.
ODD = {
    # Torch itself dies of these arguments.
    "died of SIGSEGV": {"name": "Aten.to", **call(*map(value, (-1, -1, -1)))},
    "no answer within 3 s": {
        "name": "Torch.special.laguerre_polynomial_l",
        **call(value(2**52)),
    },
    "its result would take": {"name": "Tensor.repeat", **call(value(10**12))},
}


def dumps_with(folder: Path, odd: dict[str, Any]) -> list[Path]:
    return [
        dump_with(folder / side, odd, error=error)
        for side, error in (("candidate", 1e-4), ("reference", 0.0))
    ]


@pytest.mark.parametrize("kind", ODD)
def test_the_culprit_is_named_and_the_odd_call_is_told(kind: str, tmp_path: Path) -> None:
    found = investigate(*dumps_with(tmp_path, ODD[kind]), timeout=3)
    assert found.conclusion.culprit == "Torch.exp.0.forward"
    assert found.conclusion.first is not None
    assert found.conclusion.first.confidence == "certain"
    unreplayed = found.ordered[0].analysis.unreplayed
    assert list(unreplayed) == [f"{ODD[kind]['name']}.0.forward"]
    assert kind in next(iter(unreplayed.values()))


@pytest.mark.parametrize("command", ["blame", "compare"])
def test_a_call_that_dies_does_not_end_the_command(command: str, tmp_path: Path) -> None:
    dumps = dumps_with(tmp_path, ODD["died of SIGSEGV"])
    options = [] if command == "blame" else ["-o", tmp_path / "results"]
    answer = run(tmp_path, command, *dumps, *options)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "culprit     Torch.exp.0.forward.output.0" in answer.stdout


def test_the_process_of_one_answer_serves_the_next(tmp_path: Path) -> None:
    """Importing torch anew would take longer than the replays."""
    dumps = dumps_with(tmp_path, ODD["its result would take"])
    first = investigate(*dumps)
    (process,) = [worker.process_id for worker in idle_workers()]
    again = investigate(*dumps)
    assert first.conclusion == again.conclusion
    assert [worker.process_id for worker in idle_workers()] == [process]
