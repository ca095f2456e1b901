"""Scripts that are written for a call hold nothing of a file but quoted text and numbers."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import call, tensor, value, write_data, write_dump

from tensorprobe import open_dump
from tensorprobe.blame.repro import write_repro
from tensorprobe.blame.run import investigate
from tensorprobe.errors import RebuildError
from tensorprobe.precheck.checker import Checker
from tensorprobe.replay.script_text import ArgumentSource, name_in_docstring

CODE = "__import__('os').system('touch PWNED')"
GIVEN = torch.linspace(0.1, 1, 8)

# Where a file's text could stand in a script.
PLACES: dict[str, dict[str, Any]] = {
    "a key": {f"dim=0, x={CODE}, y": value(0)},
    "a keyword": {"lambda": value(0)},
    "a dtype": {"dtype": {"type": "torch.dtype", "value": f"torch.float64 if not {CODE} else 1"}},
    "a memory format": {
        "memory_format": {"type": "torch.memory_format", "value": f"torch.x, {CODE}"}
    },
    "a device": {"device": {"type": "torch.device", "value": f"cpu', {CODE}, '"}},
    "a text": {"dim": value(f"'); {CODE} #")},
    "a slice": {"dim": {"type": "slice", "value": [CODE, CODE, CODE]}},
    "a type": {"dim": {"type": CODE, "value": CODE}},
    "a size": {"dim": {"type": "torch.Size", "value": [CODE]}},
}


def run_scripts(folder: Path) -> int:
    """Run every script below a folder; returns how many there are."""
    scripts = sorted(folder.rglob("*.py"))
    runs = "\n".join(
        f"import runpy, sys\nsys.argv[1:] = []\ntry: runpy.run_path({str(path)!r}, "
        "run_name='__main__')\nexcept BaseException: pass"
        for path in scripts
    )
    subprocess.run([sys.executable, "-c", runs], cwd=folder, capture_output=True, check=False)
    return len(scripts)


def test_the_proof_of_blame_holds_no_code_of_a_dump(tmp_path: Path) -> None:
    for place, kwargs in PLACES.items():
        dumps = []
        for side, error in (("candidate", 1e-2), ("reference", 0.0)):
            folder = tmp_path / place / side
            given = write_data(folder, "given.pt", GIVEN)
            off = write_data(folder, "out.pt", GIVEN.softmax(0) * (1 + error))
            record = call(given, outputs=[off], **{"dim": value(0), **kwargs})
            dumps.append(write_dump(folder, {"Torch.softmax.0.forward": record}, task="tensor"))
        found = investigate(*dumps)
        assert found.ordered
        with suppress(RebuildError):
            write_repro(found.ordered[0], tmp_path / place / "proof")
    assert run_scripts(tmp_path) >= 4
    assert not list(tmp_path.rglob("PWNED"))


def test_the_script_of_a_lost_call_holds_no_code_of_a_dump(tmp_path: Path) -> None:
    """What ended its worker is written down unseen: every place at once."""
    calls = {}
    for number, kwargs in enumerate(PLACES.values()):
        calls[f"Torch.softmax.{number}.forward"] = call(tensor(4), **kwargs)
    calls['Torch.softmax"""\n{x}.0.forward'] = call(tensor(4))
    part = open_dump(write_dump(tmp_path / "dump", calls)).part()
    checker = Checker(part, torch.device("cpu"), save_errors=tmp_path / "errors")
    for name in calls:
        checker.keep(checker.prepare(name), CODE)
    assert run_scripts(tmp_path / "errors") >= 4
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize(
    "argument", [CODE, [CODE], {CODE: CODE}, float("nan"), complex(0, float("inf")), 10**30, "\n#"]
)
def test_what_is_written_reads_back_as_it_was(argument: Any) -> None:
    text = ArgumentSource(lambda tensor: "no tensor").call((argument,), {f"x={CODE}": argument})
    got = eval(f"(lambda *args, **kwargs: (args, kwargs))({text})")
    assert repr(got) == repr(((argument,), {f"x={CODE}": argument}))


def test_an_object_of_another_class_is_not_written() -> None:
    class Odd(int):
        def __repr__(self) -> str:
            return CODE

    with pytest.raises(RebuildError, match="of type Odd cannot be written down"):
        ArgumentSource(lambda tensor: "").write(Odd(1))


def test_a_name_in_a_docstring_cannot_end_it() -> None:
    assert name_in_docstring('x"""\n{y}\\') == "x_____y__"
