"""Several steps: the first in which something goes wrong is named, and noise is carried along."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted import Exact, Kernels, Net, aten, scaled
from torch.nn import functional

from tensorprobe import PrecisionDebugger
from tensorprobe.blame import blame
from tensorprobe.blame.text import conclusion_lines


def capture_steps(folder: Path, kernels: dict[int, Kernels], *, rate: float = 0.1) -> Path:
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
    for step in range(2):
        torch.manual_seed(10 + step)
        ids, targets = torch.randint(0, 20, (6, 8)), torch.randint(0, 5, (48,))
        debugger.start(model)
        with kernels.get(step, Kernels()):
            loss = functional.cross_entropy(model(ids).reshape(48, 5), targets)
            torch.autograd.backward(loss)
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()
    debugger.close()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_steps(tmp_path_factory.mktemp("steps") / "reference", {})


def test_a_fault_in_a_later_step_is_told_with_its_step(reference: Path, tmp_path: Path) -> None:
    fault = capture_steps(tmp_path, {1: Kernels(aten.gelu, 0, scaled(1.01))})
    answer = blame(fault, reference)
    assert answer.culprit == "Functional.gelu.0.forward"
    assert answer.first is not None and answer.first.step == 1
    assert "step        1; nobody is at fault in step 0" in list(conclusion_lines(answer))
    assert "in step 1" in answer.summary
    assert answer.to_json()["steps"] == [0, 1]


def test_another_learning_rate_shows_where_the_next_step_begins(
    reference: Path, tmp_path: Path
) -> None:
    answer = blame(capture_steps(tmp_path, {}, rate=0.11), reference)
    assert answer.culprit is None
    assert answer.verdict == "different from the start"
    assert "when step 1 begins, though nobody is at fault in step 0" in answer.summary
    assert any("learning rate" in line for line in conclusion_lines(answer))


def test_noise_of_one_step_in_the_weights_of_the_next_is_noise(
    reference: Path, tmp_path: Path
) -> None:
    answer = blame(capture_steps(tmp_path, {0: Exact(), 1: Exact()}), reference)
    assert (answer.culprit, answer.verdict) == (None, "noise")
    # Both steps count.
    assert answer.calls == 2 * 19
