"""Gradients of modules, of the user's own functions and hooks, checkpoints and threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import BOTH_WAYS, debugger_of_modules
from gradient_runs import Capture, assert_equal, capturing, leaves
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import TensorValue


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    with capturing(tmp_path, caplog) as run:
        yield run


# --- the user's own functions and hooks ----------------------------------------------------------


class Doubled(torch.autograd.Function):
    """Has gradients that are not those of its forward, to tell who was asked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_y: Tensor) -> tuple[Tensor, Tensor]:
        return of_x + of_y, of_x - of_y


class DoubledModule(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return Doubled.apply(x, y)


def test_a_custom_function_inside_a_module(capture: Capture) -> None:
    x, y = leaves((3,), (3,))
    upstream = [torch.randn(3), torch.randn(3)]
    model = DoubledModule()
    captured = capture(
        lambda: torch.autograd.backward(model(x.sin(), y), upstream), level="mix", model=model
    )
    name = "Module.DoubledModule.backward.0"
    assert_equal(captured.inputs(name), upstream)
    assert_equal(captured.outputs(name), [upstream[0] + upstream[1], upstream[0] - upstream[1]])
    assert_equal(captured.inputs("Tensor.sin.0.backward"), [upstream[0] + upstream[1]])


def test_hooks_of_the_user_see_and_change_what_they_would_without_us(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    upstream = torch.randn(5, 4)

    def run() -> None:
        hidden = x.sin()
        hidden.register_hook(lambda gradient: gradient * 10.0)
        out = functional.linear(hidden, w)
        out.register_hook(lambda gradient: gradient + 1.0)
        out.backward(upstream)

    captured = capture(run)
    into = upstream + 1.0
    assert_equal(captured.inputs("Functional.linear.0.backward"), [into])
    found = captured.outputs("Functional.linear.0.backward")
    assert_equal([found[0]], [into @ w])
    assert_equal(captured.inputs("Tensor.sin.0.backward"), [(into @ w) * 10.0])


def test_a_module_with_backward_hooks_of_the_user(capture: Capture) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    seen: list[Any] = []
    model[1].register_full_backward_hook(lambda *args: seen.append(args))
    (x,) = leaves((5, 3))
    captured = capture(lambda: model(x).sum().backward(), level="L0", model=model)
    ((_, grad_input, grad_output),) = seen
    assert_equal(captured.inputs("Module.1.Linear.backward.0"), grad_output)
    assert_equal(captured.outputs("Module.1.Linear.backward.0"), grad_input)


# --- activation checkpointing --------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.inner(x))


def test_what_a_reentrant_checkpoint_calls_for_itself_is_no_call(capture: Capture) -> None:
    x, y = leaves((3, 4), (3, 4))

    def scale(x: Tensor, y: Tensor) -> Tensor:
        return x * y.detach().sigmoid()

    captured = capture(lambda: checkpoint(scale, x, y, use_reentrant=True).sum().backward())
    # It detaches its inputs, and the function one of them: in both runs.
    names = [name for name in captured.names if "detach" in name]
    assert names == ["Tensor.detach.0.forward", "Tensor.detach.1.forward"]
    assert [captured.is_recompute(name) for name in names] == [False, True]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_block_has_the_gradients_of_a_plain_one(
    capture: Capture, use_reentrant: bool
) -> None:
    block = Block()
    (x,) = leaves((3, 4))
    upstream = torch.randn(3, 4)
    weight = block.inner.weight
    hidden = x.sin().detach().requires_grad_()
    middle = block.inner(hidden)
    (into_linear,) = torch.autograd.grad(functional.gelu(middle), middle, upstream)
    expected = torch.autograd.grad(
        block.inner(hidden), (hidden, weight, block.inner.bias), into_linear
    )

    def run() -> None:
        checkpoint(block, x.sin(), use_reentrant=use_reentrant).backward(upstream)

    captured = capture(run, level="mix", model=block)
    # Reentrant checkpointing has no graph in its first run; its backward is that of the second.
    number = 1 if use_reentrant else 0
    assert captured.is_recompute("Functional.linear.0.forward") is False
    assert captured.is_recompute("Functional.linear.1.forward") is True
    name = f"Functional.linear.{number}.backward"
    assert [n for n in captured.names if "linear" in n and "backward" in n] == [name]
    assert_equal(captured.inputs(name), [into_linear])
    assert_equal(captured.outputs(name), expected)
    module = f"Module.inner.Linear.backward.{number}"
    assert_equal(captured.inputs(module), [into_linear])
    assert_equal(captured.outputs(module), [expected[0]])
    assert_equal(captured.inputs("Tensor.sin.0.backward"), [expected[0]])
    gradients = captured.parameters("Module.inner.Linear.parameters_grad")
    assert_equal([gradients["weight"], gradients["bias"]], expected[1:])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_two_checkpointed_blocks_in_a_row(capture: Capture, use_reentrant: bool) -> None:
    model = nn.Sequential(Block(), Block())
    (x,) = leaves((3, 4))
    upstream = torch.randn(3, 4)
    plain = x.detach().clone().requires_grad_()
    first = model[0](plain)
    first.retain_grad()
    model[1](first).backward(upstream)
    assert plain.grad is not None and first.grad is not None

    def run() -> None:
        hidden: Tensor = x
        for block in model:
            hidden = checkpoint(block, hidden, use_reentrant=use_reentrant)
        hidden.backward(upstream)

    captured = capture(run, level="L0", model=model)
    number = 1 if use_reentrant else 0
    assert_equal(captured.inputs(f"Module.1.Block.backward.{number}"), [upstream])
    assert_equal(captured.outputs(f"Module.1.Block.backward.{number}"), [first.grad])
    assert_equal(captured.inputs(f"Module.0.Block.backward.{number}"), [first.grad])
    assert_equal(captured.outputs(f"Module.0.Block.backward.{number}"), [plain.grad])


# --- modules -------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    """Two outputs of which one is computed from the other, and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x + self.down(self.act(self.up(x)))
        return {"y": y, "z": y.sum(-1)}


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_have_the_gradients_that_retain_grad_gives(capture: Capture, level: str) -> None:
    model = TwoHeads()
    (x,) = leaves((3, 4))
    of_y, of_z = torch.randn(3, 4), torch.randn(3)

    plain = x.sin().detach().requires_grad_()
    up = model.up(plain)
    act = functional.relu(up)
    down = model.down(act)
    y = plain + down
    for tensor in (up, act, down, y):
        tensor.retain_grad()
    torch.autograd.backward([y, y.sum(-1)], [of_y, of_z])

    def run() -> None:
        found = model(x.sin())
        torch.autograd.backward([found["y"], found["z"]], [of_y, of_z])

    captured = capture(run, level=level, model=model)
    for name, before, after in (
        ("up.Linear", [None], [up.grad]),
        ("act.ReLU", [up.grad], [act.grad]),
        ("down.Linear", [act.grad], [down.grad]),
    ):
        assert_equal(captured.inputs(f"Module.{name}.backward.0"), after)
        if name != "up.Linear":
            assert_equal(captured.outputs(f"Module.{name}.backward.0"), before)
    whole = "Module.TwoHeads.backward.0"
    assert_equal(captured.inputs(whole), [y.grad, of_z])
    assert_equal(captured.outputs(whole), [plain.grad])
    (through_up,) = captured.outputs("Module.up.Linear.backward.0")
    assert through_up is not None and y.grad is not None
    assert_equal([y.grad + through_up], [plain.grad])


class SharesItsInside(nn.Module):
    """Keeps tensors from inside in an attribute, as a router keeps its balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(6, 4)
        hidden = self.linear(flat).tanh()
        self.aside = (flat**2).sum() + (hidden**2).sum()
        return hidden.view(2, 3, 6)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_a_module_lets_out_beside_its_result_counts_for_its_input_alone(
    tmp_path: Path, task: str
) -> None:
    model = SharesItsInside()
    (x,) = leaves((2, 3, 4))
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task=task, level="L0", model=model)
    with debugger:
        out = model(x)
        out.retain_grad()
        (out.sum() * 3 + model.aside).backward()
    (part,) = open_dump(tmp_path).parts
    call = part.call("Module.SharesItsInside.backward.0")
    for value, gradient in ((call.inputs, out.grad), (call.outputs, x.grad)):
        assert value is not None and gradient is not None
        assert isinstance(value[0], TensorValue)
        assert value[0].norm == pytest.approx(gradient.norm().item())


class SharesAndDoubles(SharesItsInside):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@BOTH_WAYS
def test_a_module_whose_result_nobody_used_leaves_it_to_those_inside(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    model = SharesAndDoubles()
    (x,) = leaves((2, 3, 4))
    with debugger_of_modules(tmp_path, listed, model):
        model(x)
        model.aside.backward(retain_graph=True)
        # The first backward pass that reaches a call is that of its result.
        (model(x).sum() * 2).backward()
    (part,) = open_dump(tmp_path / "dump").parts
    assert [name for name in part.names if "SharesAndDoubles.backward" in name] == [
        "Module.SharesAndDoubles.backward.1"
    ]
    assert "Module.linear.Linear.backward.0" in part.names


class HoldsWithoutCalling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        self.aside = doubled.sum()
        return doubled.relu()


@BOTH_WAYS
def test_a_module_that_called_none_inside_has_a_record_of_its_own(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    model = HoldsWithoutCalling()
    (x,) = leaves((2, 4))
    with debugger_of_modules(tmp_path, listed, model):
        model(x)
        model.aside.backward()
    (part,) = open_dump(tmp_path / "dump").parts
    call = part.call("Module.HoldsWithoutCalling.backward.0")
    assert call.inputs == (None,)
    assert call.outputs is not None and isinstance(call.outputs[0], TensorValue)


class ReturnsViews(nn.Module):
    """Several outputs that show the same memory, or memory that is used inside."""

    def __init__(self, form: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.form(x.tanh())


@pytest.mark.parametrize(
    ("form", "used"),
    [
        (lambda h: (h, h.view(2, 8)), 0),
        (lambda h: (h, h.view(2, 8)), 1),
        (lambda h: (h.view(2, 8), h.t()), 0),
        (lambda h: (h * 2, h.view(2, 8)), 0),
        (lambda h: (h.view(2, 8).t(), h.exp()), 1),
        (lambda h: h.chunk(2), 1),
    ],
)
def test_a_view_nobody_used_has_not_the_gradient_of_its_base(
    capture: Capture, form: Callable[[Tensor], tuple[Tensor, ...]], used: int
) -> None:
    model = ReturnsViews(form)
    (x,) = leaves((4, 4))
    found: list[Tensor] = []

    def run() -> None:
        found[:] = model(x)
        for tensor in found:
            tensor.retain_grad()
        found[used].exp().sum().backward()

    captured = capture(run, level="L0", model=model)
    gradients = captured.inputs("Module.ReturnsViews.backward.0")
    expected = [tensor.grad for tensor in found]
    assert [g is None for g in gradients] == [g is None for g in expected]
    assert_equal([g for g in gradients if g is not None], [g for g in expected if g is not None])


def test_weights_of_an_attention_nobody_used_have_no_gradient(capture: Capture) -> None:
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    (x,) = leaves((2, 3, 4))

    def run() -> None:
        model(x, x, x, average_attn_weights=False)[0].sum().backward()

    captured = capture(run, level="mix", model=model)
    assert captured.inputs("Module.MultiheadAttention.backward.0")[1] is None
    assert captured.inputs("Functional.multi_head_attention_forward.0.backward")[1] is None


# --- threads -------------------------------------------------------------------------------------


def test_a_backward_pass_in_another_thread(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    upstream = torch.randn(5, 4)

    def run() -> None:
        out = functional.linear(x, w)
        thread = threading.Thread(target=lambda: out.backward(upstream))
        thread.start()
        thread.join()

    captured = capture(run)
    expected = torch.autograd.grad(functional.linear(x, w), (x, w), upstream)
    assert_equal(captured.outputs("Functional.linear.0.backward"), expected)


def test_modules_called_by_several_threads(capture: Capture) -> None:
    models = nn.ModuleList(Block() for _ in range(4))
    xs = leaves(*[(3, 4)] * 4)
    upstream = torch.randn(3, 4)
    barrier = threading.Barrier(4)

    def train(block: nn.Module, x: Tensor) -> None:
        for _ in range(5):
            barrier.wait()
            block(x).backward(upstream)

    def run() -> None:
        threads = [
            threading.Thread(target=train, args=pair) for pair in zip(models, xs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    captured = capture(run, level="L0", model=models)
    for index, (block, x) in enumerate(zip(models, xs, strict=True)):
        (expected,) = torch.autograd.grad(block(x), x, upstream)
        for number in range(5):
            name = f"Module.{index}.Block.backward.{number}"
            assert_equal(captured.inputs(name), [upstream])
            assert_equal(captured.outputs(name), [expected])


def test_calls_of_two_threads_in_one_graph(capture: Capture) -> None:
    models = nn.ModuleList(Block() for _ in range(2))
    (x,) = leaves((3, 4))
    upstream = torch.randn(3, 4)
    outs: list[Tensor] = []

    def run() -> None:
        hidden = x
        for block in models:
            thread = threading.Thread(target=lambda b=block, h=hidden: outs.append(b(h)))
            thread.start()
            thread.join()
            hidden = outs[-1]
        hidden.backward(upstream)

    captured = capture(run, level="L0", model=models)
    first = outs[0].detach().requires_grad_()
    (into_first,) = torch.autograd.grad(models[1](first), first, upstream)
    assert_equal(captured.outputs("Module.1.Block.backward.0"), [into_first])
    assert_equal(captured.inputs("Module.0.Block.backward.0"), [into_first])
    assert_equal(captured.outputs("Module.0.Block.backward.0"), [x.grad])


@pytest.mark.parametrize("with_result", [True, False])
@pytest.mark.parametrize("of_class", [True, False])
def test_a_forward_that_somebody_put_into_a_module_of_torch_may_let_tensors_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_result: bool, of_class: bool
) -> None:
    layer = nn.Linear(4, 4)
    its_own, kept = layer.forward, []

    def forward(given: Tensor) -> Tensor:
        kept.append(its_own(given))
        return kept[-1].view(-1) if with_result else kept[-1].relu()

    if of_class:
        monkeypatch.setattr(nn.Linear, "forward", lambda _, given: forward(given))
    else:
        layer.forward = forward  # type: ignore[method-assign]
    # Data are not kept: calls of torch's own modules are then hooked in fewer places.
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(layer)
    result = layer(torch.randn(3, 4, requires_grad=True))
    (kept[-1].sum() * 10 + (result.sum() if with_result else 0)).backward()
    debugger.stop()
    debugger.step()
    (part,) = open_dump(tmp_path).parts
    (gradient,) = part.call("Module.Linear.backward.0").inputs or ()
    if with_result:
        assert isinstance(gradient, TensorValue)
        assert (gradient.max, gradient.shape) == (1.0, (12,))
    else:
        assert gradient is None


def test_parameters_that_two_threads_compute_gradients_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def train() -> None:
        for _ in range(150):
            model(torch.randn(2, 4)).sum().backward()

    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    turn = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        debugger.start(model)
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        debugger.stop()
    finally:
        sys.setswitchinterval(turn)
    debugger.step()
    assert [r.getMessage() for r in caplog.records if r.name.startswith("tensorprobe")] == []
