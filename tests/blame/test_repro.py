"""The proof is a script of its own: it runs with torch alone and shows the fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planted import Kernels, aten, capture, scaled

from tensorprobe import PrecisionDebugger
from tensorprobe.blame.repro import write_repro
from tensorprobe.blame.run import investigate
from tensorprobe.cli import main
from tensorprobe.errors import RebuildError


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("reference"))


def prove(candidate: Path, reference: Path, folder: Path) -> Path:
    investigation = investigate(candidate, reference)
    return write_repro(investigation.ordered[0], folder)


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -I: nothing of this repository can be imported.
    return subprocess.run(
        [sys.executable, "-I", *arguments, str(script)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("packet", "number", "index"),
    [(aten.addmm, 1, 0), (aten.native_layer_norm_backward, 0, 0), (aten.gelu_backward, 0, 0)],
)
def test_the_script_shows_the_fault_of_the_recorded_run(
    packet: object, number: int, index: int, trusted: Path, tmp_path: Path
) -> None:
    candidate = capture(tmp_path / "candidate", Kernels(packet, number, scaled(1.01, index)))
    script = prove(candidate, trusted, tmp_path / "proof")
    answer = run(script)
    assert answer.returncode == 0, answer.stderr
    assert "this device computes it right; the run did not" in answer.stdout
    recorded, reference, here, limit = (
        float(item) for item in answer.stdout.split("\n")[2].split()[1:]
    )
    assert recorded == pytest.approx(0.01, rel=0.01)
    assert reference < limit < recorded
    assert here < limit


def test_a_device_that_computes_it_wrong_fails(trusted: Path, tmp_path: Path) -> None:
    candidate = capture(tmp_path / "candidate", Kernels(aten.gelu, 0, scaled(1.01)))
    script = prove(candidate, trusted, tmp_path / "proof")
    # The device of this test: gelu is wrong there whenever it is not asked for float64.
    broken = tmp_path / "proof" / "broken.py"
    broken.write_text(
        "import runpy, sys, torch\n"
        "right = torch.nn.functional.gelu\n"
        "def wrong(x, *args, **kwargs):\n"
        "    result = right(x, *args, **kwargs)\n"
        "    return result if x.dtype == torch.float64 else result * 1.01\n"
        "torch.nn.functional.gelu = wrong\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    answer = run(broken)
    assert answer.returncode == 1, answer.stderr
    assert "the device shows the fault" in answer.stdout


def test_the_pytest_form_passes_where_the_call_is_right(trusted: Path, tmp_path: Path) -> None:
    candidate = capture(tmp_path / "candidate", Kernels(aten.addmm, 1, scaled(1.001)))
    folder = prove(candidate, trusted, tmp_path / "proof").parent
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            ".",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout
    assert "2 passed" in answer.stdout


def test_the_tensors_load_without_running_anything(trusted: Path, tmp_path: Path) -> None:
    candidate = capture(tmp_path / "candidate", Kernels(aten.addmm, 1, scaled(1.001)))
    folder = prove(candidate, trusted, tmp_path / "proof").parent
    tensors = torch.load(folder / "tensors.pt", weights_only=True)
    assert {"input.0", "input.1", "input.2", "recorded.0", "reference.0"} == set(tensors)


def test_a_module_has_no_proof_and_the_reason_is_said(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", level="L0")
    kernels = Kernels(aten.addmm, 1, scaled(1.01))
    candidate = capture(tmp_path / "candidate", kernels, level="L0")
    with pytest.raises(RebuildError, match="capture at level L1 or mix"):
        prove(candidate, reference, tmp_path / "proof")


def test_statistics_have_no_proof(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", task="statistics")
    kernels = Kernels(aten.addmm, 1, scaled(1.01))
    candidate = capture(tmp_path / "candidate", kernels, task="statistics")
    with pytest.raises(RebuildError, match="data were not recorded"):
        prove(candidate, reference, tmp_path / "proof")


def test_of_other_random_numbers_there_is_nothing_to_prove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (
        str(capture(tmp_path / str(seed), chance=0.2, dropout_seed=seed)) for seed in (5, 8)
    )
    assert main(["blame", one, other, "--repro", str(tmp_path / "proof")]) == 0
    assert "proof       none: nothing to replay: the two runs draw" in capsys.readouterr().out
    assert not (tmp_path / "proof").exists()


def test_a_gradient_that_cancels_to_noise_is_no_fault_of_the_device(tmp_path: Path) -> None:
    def train(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 8, 3)
        )
        # What a bias adds, the norm behind it takes away: its gradient is 0, but for rounding.
        image = torch.randn(4, 3, 12, 12, requires_grad=True)
        kernels = Kernels(aten.convolution_backward, 1, scaled(factor))
        with PrecisionDebugger(dump_path=str(tmp_path / name), task="tensor", level="L1"), kernels:
            model(image).square().mean().backward()
        return tmp_path / name

    script = prove(train("bad", 1.01), train("good", 1.0), tmp_path / "proof")
    answer = run(script)
    errors = [[float(x) for x in line.split()[1:]] for line in answer.stdout.split("\n")[2:5]]
    assert errors[2][2] > 1e-3
    assert answer.returncode == 0, answer.stdout
    assert "this device computes it right; the run did not" in answer.stdout
