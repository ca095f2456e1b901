"""The steps of a script that was not edited are those of its optimizer."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import steps
from torch import Tensor

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.capture.script import follow_optimizer


def follow(folder: Path) -> Any:
    debugger = PrecisionDebugger(dump_path=folder)
    handles = follow_optimizer(debugger)
    debugger.__enter__()
    return debugger, handles


def test_the_first_of_several_optimizers_sets_the_pace(tmp_path: Path) -> None:
    debugger, handles = follow(tmp_path)
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    for _ in range(2):
        (torch.relu(weights[0]) * torch.sigmoid(weights[1])).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    debugger.close()
    for handle in handles:
        handle.remove()
    assert steps(tmp_path) == ["step0", "step1"]
    names = [call.name for call in open_dump(tmp_path / "step1")]
    assert names.count("Torch.relu.0.forward") == 1 and "Torch.relu.0.backward" in names


def test_an_optimizer_inside_the_backward_pass_is_told_and_leaves_the_pace_to_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger, handles = follow(tmp_path)
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    inside, after = (torch.optim.SGD([weight], lr=0.1) for weight in weights)
    weights[0].register_post_accumulate_grad_hook(lambda _: inside.step())
    for _ in range(2):
        (torch.relu(weights[0]) * weights[1]).sum().backward()
        after.step()
    debugger.close()
    for handle in handles:
        handle.remove()
    assert steps(tmp_path) == ["step0", "step1"]
    assert caplog.messages == [
        "an optimizer makes its step inside the backward pass, which ends no step of the capture; "
        "let it come after loss.backward(), or say in the script where steps end, by a "
        "PrecisionDebugger"
    ]


def test_an_optimizer_in_another_thread_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger, handles = follow(tmp_path)
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    debugger.close()
    for handle in handles:
        handle.remove()
    assert steps(tmp_path) == ["step0"]
    assert caplog.messages == [
        "an optimizer makes its step in another thread than the script's first one, which ends no "
        "step of the capture, and calls there are seen at level L0 alone; make a PrecisionDebugger "
        "there"
    ]


def test_a_model_that_runs_inside_the_optimizer_is_captured(tmp_path: Path) -> None:
    debugger, handles = follow(tmp_path)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.tanh(weight).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    debugger.close()
    for handle in handles:
        handle.remove()
    assert "Torch.tanh.0.backward" in [call.name for call in open_dump(tmp_path / "step0")]


def test_what_comes_after_a_step_of_the_optimizer_that_failed_is_captured(tmp_path: Path) -> None:
    debugger, handles = follow(tmp_path)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for rate in ("none", 0.1):
        optimizer.param_groups[0]["lr"] = rate
        torch.tanh(weight).sum().backward()
        with contextlib.suppress(TypeError):
            optimizer.step()
    debugger.close()
    for handle in handles:
        handle.remove()
    assert steps(tmp_path) == ["step0"]
    names = [call.name for call in open_dump(tmp_path)]
    assert "Torch.tanh.1.forward" in names and "Torch.tanh.1.backward" in names
    assert not any("add_" in name or "mul_" in name for name in names)


def test_the_work_of_an_optimizer_stays_hidden_whatever_hooks_of_the_users_make_of_it(
    tmp_path: Path,
) -> None:
    debugger, handles = follow(tmp_path)
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(lambda _, args, kwargs: (args, dict(kwargs)))
    for _ in range(2):
        torch.tanh(weight).sum().backward()
        optimizer.step()
    debugger.close()
    for handle in handles:
        handle.remove()
    found = [[call.name for call in part] for part in open_dump(tmp_path).parts]
    assert len(found) == 2
    for names in found:
        assert "Torch.tanh.0.forward" in names
        assert not any("add_" in name or "mul_" in name for name in names)


@pytest.mark.skipif(
    torch.__version__.startswith("2.1."), reason="its compiled optimizers tell of no steps"
)
# Of torch's own use of what it advises against.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_step_of_an_optimizer_stays_one_graph(tmp_path: Path) -> None:
    def train(folder: Path | None) -> tuple[Tensor, int, list[str]]:
        torch._dynamo.reset()
        count = 0

        def backend(graph: Any, _: Any) -> Any:
            nonlocal count
            count += 1
            return graph

        weight = torch.linspace(1, 2, 5, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step, backend=backend)
        debugger, handles = (None, []) if folder is None else follow(folder)
        for _ in range(3):
            torch.tanh(weight).sum().backward()
            step()
        if debugger is not None:
            debugger.close()
        for handle in handles:
            handle.remove()
        return weight.detach(), count, [] if folder is None else steps(folder)

    alone, graphs, _ = train(None)
    watched, graphs_watched, found = train(tmp_path)
    assert torch.equal(alone, watched)
    assert graphs_watched == graphs
    assert found == ["step0", "step1", "step2"]


def test_a_debugger_of_the_script_itself_takes_over(tmp_path: Path) -> None:
    outer, handles = follow(tmp_path / "outer")
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    inner = PrecisionDebugger(dump_path=tmp_path / "inner")
    inner.start()
    torch.relu(weight).sum().backward()
    optimizer.step()
    inner.stop()
    inner.step()
    for handle in handles:
        handle.remove()
    assert outer.is_closed
    assert steps(tmp_path / "inner") == ["step0"]
