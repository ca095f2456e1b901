"""A script that repeats a call judges as the tool that wrote it: with the fault, and without."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_faults import FAULTS, Fault
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.blame.repro import write_repro
from tensorprobe.blame.run import investigate
from tensorprobe.precheck.checker import Checker
from tensorprobe.replay.script import PARTS_OF_A_CHECK, PARTS_OF_A_PROOF, _read_parts


def given(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.randn(shape).to(dtype).requires_grad_()


def run_linear_in_half() -> torch.Tensor:
    model = nn.Linear(16, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(given(4, 16))


def write_a_statement() -> torch.Tensor:
    x = given(4, 8) * 1
    x[1] = 2.0
    return x


def normalise() -> torch.Tensor:
    mean, var = torch.zeros(4), torch.ones(4)
    return functional.batch_norm(given(8, 4), mean, var, training=True)


# The fault, the call that shows it, and the run that makes it.
CASES: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
    "gelu": ("Functional.gelu.0", lambda: functional.gelu(given(8, 16))),
    "half linear": ("Functional.linear.0", run_linear_in_half),
    "half by hand": (
        "Torch.matmul.0",
        lambda: torch.matmul(given(4, 8, dtype=torch.float16), given(8, 4, dtype=torch.float16)),
    ),
    "softmax": (
        "Functional.softmax.0",
        lambda: functional.softmax(given(2, 8, dtype=torch.bfloat16), dim=-1, dtype=torch.float32),
    ),
    "layer norm": (
        "Functional.layer_norm.0",
        lambda: functional.layer_norm(given(4, 16), (16,), given(16), given(16)),
    ),
    "in place": ("Tensor.mul_.0", lambda: (given(4, 8) * 1).mul_(given(4, 8))),
    "statement": ("Tensor.__setitem__.0", write_a_statement),
    "statistics": ("Functional.batch_norm.0", normalise),
    "places": ("Torch.argmax.0", lambda: torch.argmax(given(4, 8), dim=1)),
    "refused": ("Torch.erf.0", lambda: torch.erf(given(4, 8))),
    "dropout": ("Functional.dropout.0", lambda: functional.dropout(given(64, 64), 0.3)),
    "draws": ("Torch.rand_like.0", lambda: torch.rand_like(given(64, 64))),
}


def capture(folder: Path, run: Callable[[], torch.Tensor], fault: str | None = None) -> Path:
    torch.manual_seed(3)
    with PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1"):
        if fault is None:
            result = run()
        else:
            with Fault(fault):
                result = run()
        if result.grad_fn is not None:
            with torch._C.DisableTorchFunction():
                weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
            if fault is None:
                result.backward(weights.to(result.dtype))
            else:
                with Fault(fault):
                    result.backward(weights.to(result.dtype))
    return folder


def run_script(script: Path, fault: str | None, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Run a script where a kernel is wrong, or none is; returns what it said, and its exit code."""
    monkeypatch.setattr(sys, "argv", [str(script)])
    said = io.StringIO()
    around = nullcontext() if fault is None else Fault(fault)
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as end, around:
        runpy.run_path(str(script), run_name="__main__")
    return said.getvalue(), end.value.code


@pytest.mark.parametrize("fault", CASES)
def test_the_script_of_the_pre_check_agrees_with_it(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, run = CASES[fault]
    part = open_dump(capture(tmp_path / "dump", run)).part()
    checker = Checker(part, torch.device("cpu"), save_errors=tmp_path / "errors")
    assert checker.check(f"{name}.forward").forward in ("pass", "SKIP")
    with Fault(fault):
        result = checker.check(f"{name}.forward")
    assert "error" in (result.forward, result.backward), result
    script = tmp_path / "errors" / name / "repro.py"
    said, code = run_script(script, fault, monkeypatch)
    assert code == 1, said
    assert "FAILED" in said
    said, code = run_script(script, None, monkeypatch)
    assert code == 0, said
    assert "FAILED" not in said


@pytest.mark.parametrize(
    "fault", ["gelu", "half linear", "softmax", "layer norm", "in place", "half by hand"]
)
def test_the_proof_of_blame_agrees_with_it(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, run = CASES[fault]
    candidate = capture(tmp_path / "candidate", run, fault)
    reference = capture(tmp_path / "reference", run)
    investigation = investigate(candidate, reference)
    assert (investigation.conclusion.culprit or "").startswith(name), investigation.conclusion
    script = write_repro(investigation.ordered[0], tmp_path / "proof")
    said, code = run_script(script, fault, monkeypatch)
    assert code == 1, said
    assert "the device shows the fault" in said
    said, code = run_script(script, None, monkeypatch)
    assert code == 0, said
    errors: list[list[float]] = [
        [float(item) for item in line.split()[1:]]
        for line in said.splitlines()
        if line[:1].isdigit()
    ]
    # What the run recorded is off, what the trusted one did is not.
    assert any(recorded > limit > trusted for recorded, trusted, _, limit in errors), said


def test_every_fault_has_its_case() -> None:
    assert set(CASES) == set(FAULTS)


@pytest.mark.parametrize("parts", [PARTS_OF_A_CHECK, PARTS_OF_A_PROOF])
def test_parts_of_a_script_have_no_name_twice(parts: tuple[str, ...]) -> None:
    import ast

    _, bodies = _read_parts(parts)
    names: Counter[str] = Counter()
    for node in ast.parse("\n".join(bodies)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] += 1
        elif isinstance(node, ast.Assign):
            names.update(ast.unparse(target) for target in node.targets)
    assert not [name for name, count in names.items() if count > 1]


def test_a_script_is_plain_python_of_torch_alone(tmp_path: Path) -> None:
    name, run = CASES["softmax"]
    part = open_dump(capture(tmp_path / "dump", run)).part()
    checker = Checker(part, torch.device("cpu"), save_errors=tmp_path / "errors")
    with Fault("softmax"):
        checker.check(f"{name}.forward")
    script = tmp_path / "errors" / name / "repro.py"
    text = script.read_text()
    assert "tensorprobe" not in text
    assert "torch.nn.functional.softmax(given('input.0', True), " in text
    answer: Any = subprocess.run(
        [sys.executable, "-I", str(script), "nonsense"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2, answer.stderr
