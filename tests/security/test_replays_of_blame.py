"""A replay that ends its process, never ends, or wants too much costs one call of blame's answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import call, run, value, write_data, write_dump

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


ODD = {
    # Torch itself dies of these arguments.
    "dies": {"name": "Aten.to", **call(*map(value, (-1, -1, -1)))},
    "never ends": {
        "name": "Torch.special.laguerre_polynomial_l",
        **call(value(2**52)),
    },
    "asks for too much": {"name": "Tensor.repeat", **call(value(10**12))},
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("command", ["blame", "compare"])
def test_the_culprit_is_named_all_the_same(command: str, kind: str, tmp_path: Path) -> None:
    dumps = [
        dump_with(tmp_path / side, ODD[kind], error=error)
        for side, error in (("candidate", 1e-4), ("reference", 0.0))
    ]
    started = time.monotonic()
    options = ["--timeout", "8"] if command == "blame" else ["-o", tmp_path / "results"]
    answer = run(tmp_path, command, *dumps, *options)
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert "culprit     Torch.exp.0.forward.output.0" in answer.stdout
    if command == "blame":
        assert "certain" in answer.stdout
        assert "cannot be replayed: 1 call" in answer.stdout
    assert time.monotonic() - started < 60
