"""Several backward passes: each has its own calls, and none leaks into another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gradient_runs import Capture, Gradients, assert_equal, capturing, leaves
from torch import Tensor, nn
from torch.nn import functional

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.gradients import GradientWatcher
from tensorprobe.capture.graph_edges import InputEdges, next_sequence_number


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    with capturing(tmp_path, caplog) as run:
        yield run


# --- several passes ------------------------------------------------------------------------------


def test_accumulation_over_two_passes_has_each_pass_its_own_calls(capture: Capture) -> None:
    (w,) = leaves((4, 3))
    batches = [torch.randn(5, 3), torch.randn(5, 3)]
    upstream = torch.randn(5, 4)

    def run() -> None:
        for batch in batches:
            functional.linear(batch, w).backward(upstream)

    captured = capture(run)
    for index, batch in enumerate(batches):
        (expected,) = torch.autograd.grad(functional.linear(batch, w), w, upstream)
        assert_equal(captured.outputs(f"Functional.linear.{index}.backward"), [None, expected])


def test_accumulation_over_two_passes_has_each_pass_its_parameter_gradients(
    capture: Capture,
) -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    batches = [torch.randn(5, 3), torch.randn(5, 3)]

    def run() -> None:
        for batch in batches:
            model(batch).sum().backward()

    captured = capture(run, level="L0", model=model)
    found = [name for name in captured.names if "parameters_grad" in name]
    assert len(found) == 2
    for name, batch in zip(found, batches, strict=True):
        expected = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
        gradients = captured.parameters(name)
        assert_equal([gradients["weight"], gradients["bias"]], expected)


def test_a_second_pass_through_the_same_call_does_not_touch_the_first(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    first, second = torch.randn(5, 4), torch.randn(5, 4)

    def run() -> None:
        hidden = functional.linear(x, w)
        out = functional.gelu(hidden)
        out.backward(first, retain_graph=True)
        out.backward(second)

    captured = capture(run)
    hidden = functional.linear(x, w)
    (into,) = torch.autograd.grad(functional.gelu(hidden), hidden, first)
    expected = torch.autograd.grad(functional.linear(x, w), (x, w), into)
    assert_equal(captured.inputs("Functional.linear.0.backward"), [into])
    assert_equal(captured.outputs("Functional.linear.0.backward"), expected)
    assert len(captured.backward_names) == 2


def test_passes_that_are_not_recorded_are_counted() -> None:
    (x,) = leaves((3,))
    done: list[Gradients] = []
    failures: list[Exception] = []
    watcher = GradientWatcher(lambda _, err: failures.append(err))
    edges, start = InputEdges([x]), next_sequence_number()
    out = x.sin()
    watcher.watch("sin", None, edges, start, [out], lambda *found: done.append(found[3]))
    for scale in (1.0, 2.0, 3.0):
        out.backward(torch.full((3,), scale), retain_graph=True)
    watcher.close()
    out.backward(torch.ones(3))
    assert watcher.passed_over == 2
    assert not failures
    (first,) = done
    assert_equal(first, [x.cos()])


def test_two_losses_that_use_different_outputs_of_a_call_are_not_mixed(capture: Capture) -> None:
    x, h, c, *weights = leaves((5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4), (16,), (16,))
    upstream = torch.randn(5, 2, 4)

    def lstm(*args: Tensor) -> tuple[Tensor, ...]:
        x, h, c, *weights = args
        return torch.lstm(x, (h, c), weights, True, 1, 0.0, True, False, False)

    def run() -> None:
        out, _, last = lstm(x, h, c, *weights)
        out.backward(upstream, retain_graph=True)
        last.sum().backward()

    captured = capture(run)
    copies = [t.detach().clone().requires_grad_() for t in (x, h, c, *weights)]
    expected = torch.autograd.grad(lstm(*copies)[0], copies, upstream)
    assert_equal(captured.inputs("VF.lstm.0.backward"), [upstream, None, None])
    assert_equal(captured.outputs("VF.lstm.0.backward"), expected)
    names = captured.backward_names
    assert names.index("VF.lstm.0.backward") < names.index("Tensor.sum.0.backward")


def test_a_pass_that_raises_half_way_does_not_leak_into_the_next(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    upstream = torch.randn(5, 4)

    def run() -> None:
        hidden = x.sin()
        out = functional.linear(hidden, w)
        handle = hidden.register_hook(_raise)
        with pytest.raises(ZeroDivisionError):
            out.backward(upstream, retain_graph=True)
        handle.remove()
        out.backward(upstream)

    captured = capture(run)
    hidden = x.sin().detach().requires_grad_()
    expected = torch.autograd.grad(functional.linear(hidden, w), (hidden, w), upstream)
    found = captured.outputs("Functional.linear.0.backward")
    assert_equal([found[0]], [expected[0]])
    assert found[1] is None or torch.equal(found[1], expected[1])
    assert_equal(captured.outputs("Tensor.sin.0.backward"), [x.grad])


def _raise(gradient: Tensor) -> None:
    raise ZeroDivisionError


def test_double_backward_has_the_first_pass(capture: Capture) -> None:
    (x,) = leaves((3, 4))

    def run() -> None:
        (gradient,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    captured = capture(run)
    assert_equal(captured.inputs("Tensor.sin.0.backward"), [torch.ones(3, 4)])
    assert_equal(captured.outputs("Tensor.sin.0.backward"), [x.cos()])
    assert_equal(captured.inputs("Tensor.pow.0.backward"), [torch.ones(3, 4)])
    assert_equal([x.grad], [-2 * x.cos() * x.sin()])


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "mix"])
def test_a_gradient_penalty_and_a_second_pass_change_nothing_and_are_told(
    level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(debugger: PrecisionDebugger | None) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(3, 4, requires_grad=True)
        if debugger is not None:
            debugger.start(model)
        out = model(x).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        loss = out + (slope.norm() - 1) ** 2
        loss.backward(retain_graph=True)
        loss.backward()
        model(x.detach()).sum().backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
            debugger.close()
        return [p.grad for p in (*model.parameters(), x) if p.grad is not None]

    alone = train(None)
    watched = train(PrecisionDebugger(dump_path=tmp_path, level=level))
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert not list(tmp_path.rglob("dump_error_info.log"))
    if level == "L2":
        return
    assert "second backward pass" in caplog.text
    names = [record.name for record in open_dump(tmp_path)]
    # Each once, for the pass that came first; what came after has a number of its own.
    assert len(names) == len(set(names))
    if level != "L1":
        assert {"Module.0.Linear.backward.0", "Module.0.Linear.backward.1"} <= set(names)
        passes = [name for name in names if name.startswith("Module.0.Linear.parameters_grad")]
        assert passes == [
            "Module.0.Linear.parameters_grad",
            "Module.0.Linear.parameters_grad.1",
            "Module.0.Linear.parameters_grad.2",
        ]
    if level != "L0":
        assert {"Functional.linear.0.backward", "Functional.linear.2.backward"} <= set(names)


def test_gradients_asked_for_by_autograd_grad_are_recorded(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    upstream = torch.randn(5, 4)

    def run() -> None:
        hidden = x.sin()
        torch.autograd.grad(functional.linear(hidden, w), hidden, upstream)

    captured = capture(run)
    # Only this gradient was computed; the weight's was not asked for.
    assert_equal(captured.outputs("Functional.linear.0.backward"), [upstream @ w, None])
    assert captured.backward_names == ["Functional.linear.0.backward"]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch scales on GPUs alone")
def test_scaled_losses_have_scaled_gradients(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD([w], lr=0.1)
    captured_gradient: list[Tensor] = []

    def run() -> None:
        scaler.scale(functional.linear(x, w).square().mean()).backward()
        assert w.grad is not None
        captured_gradient.append(w.grad.clone())

    captured = capture(run)
    found = captured.outputs("Functional.linear.0.backward")[1]
    assert_equal([found], captured_gradient)
    scaler.unscale_(optimizer)
    assert found is not None and w.grad is not None
    torch.testing.assert_close(found / 1024.0, w.grad)
