"""Gradients in a dump are those that autograd computes, in the order of the call's arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.gradients import GradientWatcher
from tensorprobe.capture.graph_edges import InputEdges, next_sequence_number
from tensorprobe.records import TensorValue, Value
from torch_abilities import tells_of_indexing

Gradients = list["Tensor | None"]


class Captured:
    """What one captured run left on the disk."""

    def __init__(self, folder: Path) -> None:
        (self._part,) = open_dump(folder).parts
        self._data = self._part.path.parent / "dump_tensor_data"
        assert not self._part.gaps

    @property
    def names(self) -> list[str]:
        return list(self._part.names)

    @property
    def backward_names(self) -> list[str]:
        return [name for name in self.names if ".backward" in name]

    def is_recompute(self, name: str) -> bool | None:
        return self._part.call(name).is_recompute

    def inputs(self, name: str) -> Gradients:
        """The gradients that came into a call's backward: of the call's outputs."""
        return self._tensors(self._part.call(name).inputs)

    def outputs(self, name: str) -> Gradients:
        """The gradients that left a call's backward: of the call's inputs."""
        return self._tensors(self._part.call(name).outputs)

    def parameters(self, name: str) -> dict[str, Tensor | None]:
        parameters = self._part.call(name).parameters
        assert parameters is not None
        return {key: self._tensor(value) for key, value in parameters.items()}

    def _tensors(self, values: Sequence[Value] | None) -> Gradients:
        assert values is not None
        return [self._tensor(value) for value in values]

    def _tensor(self, value: Value) -> Tensor | None:
        if value is None:
            return None
        assert isinstance(value, TensorValue)
        assert value.data_name is not None
        tensor: Tensor = torch.load(self._data / value.data_name, weights_only=True)
        assert tuple(tensor.shape) == value.shape
        return tensor


class Capture:
    """Runs something with the tool on, and reads the dump back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, run: Callable[[], Any], *, level: str = "L1", model: nn.Module | None = None
    ) -> Captured:
        debugger = PrecisionDebugger(dump_path=self._folder, task="tensor", level=level)
        debugger.start(model)
        run()
        debugger.stop()
        debugger.step()
        return Captured(self._folder)


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    torch.manual_seed(0)
    yield Capture(tmp_path)
    # The tool has nothing to complain about: every call could be recorded.
    assert [r.getMessage() for r in caplog.records if r.name.startswith("tensorprobe")] == []


def assert_equal(actual: Gradients, expected: Sequence[Tensor | None]) -> None:
    """Same number, same places without a gradient, same shapes, same bits."""
    assert [None if t is None else tuple(t.shape) for t in actual] == [
        None if t is None else tuple(t.shape) for t in expected
    ]
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs.detach()), f"gradient {index} differs"


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, tuple) else []


# --- one call: any API ---------------------------------------------------------------------------

_INDEX = torch.tensor([2, 0, 2])
_CLASSES = torch.tensor([1, 0, 3, -100, 2])
_MASK = torch.rand(3, 4, generator=torch.Generator().manual_seed(7)) > 0.5

# The call's name in the dump, the shapes of its tensor arguments, and the call.
CASES: dict[str, tuple[str, list[tuple[int, ...]], Callable[..., Any]]] = {
    "linear 2-d": ("Functional.linear", [(5, 3), (4, 3)], functional.linear),
    "linear 2-d bias": ("Functional.linear", [(5, 3), (4, 3), (4,)], functional.linear),
    "linear 3-d": ("Functional.linear", [(2, 5, 3), (4, 3)], functional.linear),
    "linear 3-d bias": ("Functional.linear", [(2, 5, 3), (4, 3), (4,)], functional.linear),
    "linear 1-d bias": ("Functional.linear", [(3,), (4, 3), (4,)], functional.linear),
    "linear by keyword": (
        "Functional.linear",
        [(5, 3), (4,), (4, 3)],
        lambda x, b, w: functional.linear(x, bias=b, weight=w),
    ),
    "matmul 1-d": ("Torch.matmul", [(4,), (4,)], torch.matmul),
    "matmul 2-d": ("Torch.matmul", [(3, 4), (4, 5)], torch.matmul),
    "matmul 3-d by 2-d": ("Torch.matmul", [(2, 3, 4), (4, 5)], torch.matmul),
    "matmul 4-d": ("Torch.matmul", [(2, 3, 4, 5), (2, 3, 5, 6)], torch.matmul),
    "matmul broadcast": ("Torch.matmul", [(2, 1, 4, 5), (3, 5, 6)], torch.matmul),
    "matmul as operator": ("Tensor.__matmul__", [(2, 3, 4), (4, 5)], lambda a, b: a @ b),
    "addmm": ("Torch.addmm", [(5,), (3, 4), (4, 5)], torch.addmm),
    "bmm": ("Torch.bmm", [(2, 3, 4), (2, 4, 5)], torch.bmm),
    "einsum": (
        "Torch.einsum",
        [(2, 3, 4), (2, 4, 5), (5,)],
        lambda *args: torch.einsum("bij,bjk,k->bi", *args),
    ),
    "bilinear": ("Torch.bilinear", [(4, 3), (4, 2), (5, 3, 2), (5,)], functional.bilinear),
    "cross_entropy": (
        "Functional.cross_entropy",
        [(5, 4)],
        lambda x: functional.cross_entropy(x, _CLASSES, label_smoothing=0.1),
    ),
    "cross_entropy of probabilities": (
        "Functional.cross_entropy",
        [(5, 4), (5, 4)],
        functional.cross_entropy,
    ),
    "mse_loss": ("Functional.mse_loss", [(5, 4), (5, 4)], functional.mse_loss),
    "sdpa": (
        "Functional.scaled_dot_product_attention",
        [(2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)],
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "sdpa with a mask": (
        "Functional.scaled_dot_product_attention",
        [(2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3), (5, 6)],
        functional.scaled_dot_product_attention,
    ),
    "multi_head_attention_forward": (
        "Functional.multi_head_attention_forward",
        [(5, 2, 8), (5, 2, 8), (5, 2, 8), (24, 8), (24,), (8, 8), (8,)],
        lambda q, k, v, w, b, o, ob: functional.multi_head_attention_forward(
            q, k, v, 8, 2, w, b, None, None, False, 0.0, o, ob
        ),
    ),
    "layer_norm": (
        "Functional.layer_norm",
        [(5, 3, 4), (4,), (4,)],
        lambda x, w, b: functional.layer_norm(x, (4,), w, b),
    ),
    "group_norm": (
        "Functional.group_norm",
        [(2, 4, 3), (4,), (4,)],
        lambda x, w, b: functional.group_norm(x, 2, w, b),
    ),
    "rms_norm": (
        "Functional.rms_norm",
        [(5, 4), (4,)],
        lambda x, w: functional.rms_norm(x, (4,), w),
    ),
    "batch_norm": (
        "Functional.batch_norm",
        [(5, 4), (4,), (4,)],
        lambda x, w, b: functional.batch_norm(
            x, torch.zeros(4), torch.ones(4), w, b, training=True
        ),
    ),
    "embedding": ("Functional.embedding", [(7, 4)], lambda w: functional.embedding(_INDEX, w)),
    "conv2d": ("Torch.conv2d", [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], functional.conv2d),
    "conv1d without bias": ("Torch.conv1d", [(2, 3, 6), (4, 3, 3)], functional.conv1d),
    "conv_transpose2d": (
        "Torch.conv_transpose2d",
        [(2, 3, 4, 4), (3, 4, 2, 2), (4,)],
        functional.conv_transpose2d,
    ),
    "interpolate": (
        "Functional.interpolate",
        [(1, 2, 3, 3)],
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    "max_pool2d": ("Functional.max_pool2d", [(1, 2, 4, 4)], lambda x: functional.max_pool2d(x, 2)),
    "softmax": ("Functional.softmax", [(3, 4)], lambda x: functional.softmax(x, -1)),
    "glu": ("Functional.glu", [(3, 4)], functional.glu),
    "normalize": ("Functional.normalize", [(3, 4)], functional.normalize),
    "add with broadcast": ("Tensor.__add__", [(3, 4), (4,)], lambda a, b: a + b),
    "where": ("Torch.where", [(3, 4), (3, 1)], lambda a, b: torch.where(_MASK, a, b)),
    "masked_fill": ("Tensor.masked_fill", [(3, 4)], lambda x: x.masked_fill(_MASK, 0.0)),
    "index": ("Tensor.__getitem__", [(3, 4)], lambda x: x[_INDEX]),
    "slice": ("Tensor.__getitem__", [(3, 4)], lambda x: x[1:, ::2]),
    "gather": ("Torch.gather", [(3, 4)], lambda x: torch.gather(x, 0, _INDEX[None].expand(3, 3))),
    "index_add": (
        "Tensor.index_add",
        [(3, 4), (3, 4)],
        lambda x, y: x.index_add(0, _INDEX, y),
    ),
    "scatter_add": (
        "Tensor.scatter_add",
        [(3, 4), (3, 4)],
        lambda x, y: x.scatter_add(1, _INDEX[:, None].expand(3, 4), y),
    ),
    "cat": ("Torch.cat", [(3, 4), (2, 4), (1, 4)], lambda *args: torch.cat(args)),
    "stack": ("Torch.stack", [(3, 4), (3, 4)], lambda *args: torch.stack(args, 1)),
    "split": ("Tensor.split", [(6, 2)], lambda x: x.split(2)),
    "chunk": ("Tensor.chunk", [(2, 6)], lambda x: x.chunk(3, -1)),
    "unbind": ("Tensor.unbind", [(3, 4)], lambda x: x.unbind()),
    "max": ("Tensor.max", [(3, 4)], lambda x: tuple(x.max(1))[:1]),
    "topk": ("Tensor.topk", [(3, 4)], lambda x: tuple(x.topk(2))[:1]),
    "var_mean": ("Torch.var_mean", [(3, 4)], lambda x: torch.var_mean(x, 1)),
    "transpose": ("Tensor.transpose", [(3, 4)], lambda x: x.transpose(0, 1)),
    "expand": ("Tensor.expand", [(3, 1)], lambda x: x.expand(3, 4)),
    "view": ("Tensor.view", [(3, 4)], lambda x: x.view(-1)),
    "to": ("Tensor.to", [(3, 4)], lambda x: x.to(torch.float64)),
    "lstm": (
        "VF.lstm",
        [(5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4), (16,), (16,)],
        lambda x, h, c, *w: torch.lstm(x, (h, c), w, True, 1, 0.0, True, False, False),
    ),
}


@pytest.mark.parametrize("is_leaf", [True, False], ids=["leaves", "computed"])
@pytest.mark.parametrize("case", CASES)
def test_a_call_has_the_gradients_of_its_outputs_and_of_its_arguments(
    capture: Capture, case: str, is_leaf: bool
) -> None:
    if case == "rms_norm" and not hasattr(functional, "rms_norm"):
        pytest.skip("this torch has no rms_norm")
    if case == "index" and not tells_of_indexing():
        pytest.skip("this torch tells nobody that a tensor is indexed")
    name, shapes, function = CASES[case]
    sources = leaves(*shapes)
    copies = [source.detach().clone().requires_grad_() for source in sources]
    results = flat(function(*copies))
    upstream = [torch.randn_like(result) for result in results]
    expected = torch.autograd.grad(results, copies, upstream)

    def run() -> None:
        args = sources if is_leaf else [source.clone() for source in sources]
        torch.autograd.backward(flat(function(*args)), upstream)

    captured = capture(run)
    found = captured.outputs(f"{name}.0.backward")
    assert_equal(captured.inputs(f"{name}.0.backward")[: len(upstream)], upstream)
    # Numbers, indices and masks among the arguments have no gradient.
    assert_equal([gradient for gradient in found if gradient is not None], expected)


@pytest.mark.parametrize("case", ["linear 3-d bias", "sdpa", "layer_norm", "conv2d", "cat"])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_an_argument_that_needs_no_gradient_leaves_its_place_empty(
    capture: Capture, case: str, frozen: int
) -> None:
    name, shapes, function = CASES[case]
    args = leaves(*shapes)
    args[frozen].requires_grad_(False)
    copies = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    result = function(*copies)
    upstream = torch.randn_like(result)
    expected: list[Tensor | None] = list(
        torch.autograd.grad(result, [c for c in copies if c.requires_grad], upstream)
    )
    expected.insert(frozen, None)

    captured = capture(lambda: function(*args).backward(upstream))

    assert_equal(captured.outputs(f"{name}.0.backward"), expected)


# --- one input, several edges --------------------------------------------------------------------


def test_an_input_given_twice_has_the_sum_at_both_places(capture: Capture) -> None:
    (x,) = leaves((3, 4))
    upstream = torch.randn(3, 4)
    captured = capture(lambda: (x * x).backward(upstream))
    total = upstream * x + upstream * x
    assert_equal(captured.outputs("Tensor.__mul__.0.backward"), [total, total])


def test_self_attention_of_one_tensor_has_the_sum_at_all_places(capture: Capture) -> None:
    (x,) = leaves((1, 2, 5, 4))
    upstream = torch.randn(1, 2, 5, 4)
    copy = x.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(
        functional.scaled_dot_product_attention(copy, copy, copy), copy, upstream
    )
    captured = capture(lambda: functional.scaled_dot_product_attention(x, x, x).backward(upstream))
    for gradient in captured.outputs("Functional.scaled_dot_product_attention.0.backward"):
        torch.testing.assert_close(gradient, expected)


def test_each_call_that_uses_an_input_has_its_own_part(capture: Capture) -> None:
    x, w = leaves((3, 4), (4, 4))
    upstream = torch.randn(3, 4)
    kept: list[Tensor] = []

    def run() -> None:
        hidden = x.exp()
        kept.append(hidden)
        (hidden + functional.gelu(functional.linear(hidden, w)) + hidden * 3.0).backward(upstream)

    captured = capture(run)
    hidden = kept[0].detach().requires_grad_()
    through_linear = torch.autograd.grad(
        functional.gelu(functional.linear(hidden, w)), (hidden, w), upstream
    )
    assert_equal(captured.outputs("Functional.linear.0.backward"), through_linear)
    assert_equal(captured.outputs("Tensor.__add__.0.backward"), [upstream, upstream])
    assert_equal(captured.outputs("Tensor.__mul__.0.backward"), [upstream * 3.0])
    total = upstream + through_linear[0] + upstream * 3.0
    (into_exp,) = captured.inputs("Tensor.exp.0.backward")
    torch.testing.assert_close(into_exp, total)
    assert_equal([into_exp * kept[0]], [x.grad])


def test_a_weight_used_by_two_calls_has_each_call_its_part(capture: Capture) -> None:
    x, w = leaves((3, 4), (4, 4))
    upstream = torch.randn(3, 4)
    captured = capture(lambda: functional.linear(functional.linear(x, w), w).backward(upstream))
    hidden = functional.linear(x, w).detach().requires_grad_()
    second = torch.autograd.grad(functional.linear(hidden, w), (hidden, w), upstream)
    first = torch.autograd.grad(functional.linear(x, w), (x, w), second[0])
    assert_equal(captured.outputs("Functional.linear.1.backward"), second)
    assert_equal(captured.outputs("Functional.linear.0.backward"), first)
    assert_equal([second[1] + first[1]], [w.grad])


@pytest.mark.parametrize("calls", [1, 3])
def test_a_weight_that_autocast_casts_once_has_each_call_its_part(
    capture: Capture, calls: int
) -> None:
    x, w, b = leaves((6, 4), (4, 4), (4,))
    upstream = torch.randn(6, 4).bfloat16()

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            outs = [functional.linear(x + index, w, b) for index in range(calls)]
        torch.autograd.backward(outs, [upstream] * calls)

    captured = capture(run)
    for index in range(calls):
        copies = [t.detach().clone().requires_grad_() for t in (x + index, w, b)]
        with torch.autocast("cpu", torch.bfloat16):
            out = functional.linear(*copies)
        expected = torch.autograd.grad(out, copies, upstream)
        assert_equal(captured.outputs(f"Functional.linear.{index}.backward"), expected)


def test_inputs_that_depend_on_each_other_have_their_own_parts(capture: Capture) -> None:
    (x,) = leaves((3, 4))
    upstream = torch.randn(3, 4)
    captured = capture(lambda: torch.mul(x, x.sin()).backward(upstream))
    assert_equal(captured.outputs("Torch.mul.0.backward"), [upstream * x.sin(), upstream * x])


# --- outputs -------------------------------------------------------------------------------------


def test_an_output_nobody_used_has_no_gradient_and_the_input_is_complete(capture: Capture) -> None:
    x, h, c, *weights = leaves((5, 2, 3), (1, 2, 4), (1, 2, 4), (16, 3), (16, 4), (16,), (16,))
    upstream = torch.randn(5, 2, 4)

    def forward(*args: Tensor) -> Tensor:
        x, h, c, *weights = args
        out: Tensor = torch.lstm(x, (h, c), weights, True, 1, 0.0, True, False, False)[0]
        return out

    copies = [t.detach().clone().requires_grad_() for t in (x, h, c, *weights)]
    expected = torch.autograd.grad(forward(*copies), copies, upstream)
    captured = capture(lambda: forward(x.sin(), h, c, *weights).backward(upstream))
    assert captured.inputs("VF.lstm.0.backward")[1:] == [None, None]
    copies[0] = x.sin().detach().requires_grad_()
    expected = torch.autograd.grad(forward(*copies), copies, upstream)
    assert_equal(captured.outputs("VF.lstm.0.backward"), expected)
    # In its place, not at the end: what it was computed from comes after it.
    names = captured.backward_names
    assert names.index("VF.lstm.0.backward") < names.index("Tensor.sin.0.backward")


def test_split_parts_nobody_used_have_no_gradient(capture: Capture) -> None:
    (x,) = leaves((6, 2))
    upstream = torch.randn(2, 2)
    captured = capture(lambda: (x * 2.0).split(2)[1].backward(upstream))
    inputs = captured.inputs("Tensor.split.0.backward")
    assert [gradient is None for gradient in inputs] == [True, False, True]
    assert_equal(inputs[1:2], [upstream])
    expected = torch.zeros(6, 2)
    expected[2:4] = upstream
    assert_equal(captured.outputs("Tensor.split.0.backward"), [expected])


def test_a_call_that_did_not_take_part_has_no_backward(capture: Capture) -> None:
    x, y = leaves((3,), (3,))

    def run() -> None:
        y.sin()
        with torch.no_grad():
            x.cos()
        with torch.inference_mode():
            x.tan()
        x.detach().exp()
        x.tanh().sum().backward()

    captured = capture(run)
    assert captured.backward_names == ["Tensor.sum.0.backward", "Tensor.tanh.0.backward"]
    for name in ("sin", "cos", "tan", "exp"):
        assert f"Tensor.{name}.0.forward" in captured.names


def test_tensors_that_need_no_gradient_have_no_backward(capture: Capture) -> None:
    captured = capture(lambda: functional.linear(torch.randn(2, 3), torch.randn(4, 3)).relu())
    assert captured.backward_names == []


def test_a_module_returning_what_it_was_given_adds_nothing_of_its_own(capture: Capture) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 3))
    captured = capture(lambda: model(torch.randn(2, 3)).sum().backward(), level="L0", model=model)
    assert not any("Identity.backward" in name for name in captured.names)
    assert captured.outputs("Module.0.Linear.backward.0") == [None]


# --- views and writes in place -------------------------------------------------------------------


def test_an_activation_in_place_has_the_gradients_before_and_after_it(capture: Capture) -> None:
    x, w = leaves((5, 3), (4, 3))
    upstream = torch.randn(5, 4)

    def run() -> None:
        functional.relu(functional.linear(x, w), inplace=True).backward(upstream)

    captured = capture(run)
    hidden = functional.linear(x, w).detach().requires_grad_()
    (into_linear,) = torch.autograd.grad(functional.relu(hidden), hidden, upstream)
    assert_equal(captured.inputs("Functional.relu.0.backward"), [upstream])
    assert_equal(captured.outputs("Functional.relu.0.backward"), [into_linear])
    assert_equal(captured.inputs("Functional.linear.0.backward"), [into_linear])


# How a view is taken of a 4×4 tensor.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda b: b.view(-1),
    "slice": lambda b: b[1:3, 2:],
    "column": lambda b: b[:, 1],
    "step": lambda b: b[::2, ::3],
    "transpose": lambda b: b.t(),
    "last": lambda b: b[-1],
}


# Columns cannot be flattened without a copy.
@pytest.mark.parametrize(
    ("view", "layout"),
    [(v, way) for v in VIEWS for way in ("rows", "columns") if (v, way) != ("view", "columns")],
)
def test_a_view_written_in_place_has_the_gradients_before_and_after_it(
    capture: Capture, view: str, layout: str
) -> None:
    take = VIEWS[view]
    (x,) = leaves((4, 4))
    upstream = torch.randn(4, 4)

    def base_of(x: Tensor) -> Tensor:
        # An elementwise operation keeps the layout of what it is given.
        return (x if layout == "rows" else x.t()).sin()

    def run() -> None:
        base = base_of(x)
        assert base.is_contiguous() == (layout == "rows")
        take(base).tanh_()
        base.backward(upstream)

    captured = capture(run)
    part = take(base_of(x)).detach().clone().requires_grad_()
    after = take(upstream)
    (before,) = torch.autograd.grad(part.tanh(), part, after)
    assert_equal(captured.inputs("Tensor.tanh_.0.backward"), [after])
    assert_equal(captured.outputs("Tensor.tanh_.0.backward"), [before])
    total = upstream.clone()
    take(total).copy_(before)
    assert_equal(captured.inputs("Tensor.sin.0.backward"), [total])


def test_a_view_written_twice_has_each_write_its_gradients(capture: Capture) -> None:
    (x,) = leaves((3, 4))
    upstream = torch.randn(12)

    def run() -> None:
        part = (x * 2.0).view(-1)
        part.mul_(3.0)
        part.tanh_()
        part.backward(upstream)

    captured = capture(run)
    middle = (x * 6.0).detach().view(-1).requires_grad_()
    (before_tanh,) = torch.autograd.grad(middle.tanh(), middle, upstream)
    assert_equal(captured.outputs("Tensor.tanh_.0.backward"), [before_tanh])
    assert_equal(captured.inputs("Tensor.mul_.0.backward"), [before_tanh])
    assert_equal(captured.outputs("Tensor.mul_.0.backward"), [before_tanh * 3.0])


def test_a_view_added_into_another_of_the_same_tensor(capture: Capture) -> None:
    (x,) = leaves((4, 3))
    upstream = torch.randn(4, 3)

    def run() -> None:
        base = x * 2.0
        base[:2].add_(base[2:])
        base.backward(upstream)

    captured = capture(run)
    assert_equal(captured.inputs("Tensor.add_.0.backward"), [upstream[:2]])
    assert_equal(captured.outputs("Tensor.add_.0.backward"), [upstream[:2], upstream[:2]])


def test_writing_through_one_view_leaves_the_gradients_of_another_right(capture: Capture) -> None:
    (x,) = leaves((3, 4))
    upstream = torch.randn(4, 3)
    kept: list[Tensor] = []

    def run() -> None:
        base = x * 2.0
        one, other = base.view(-1), base.view(4, 3)
        one.tanh_()
        kept.append(other)
        functional.gelu(other).backward(upstream)

    captured = capture(run)
    copy = kept[0].detach().requires_grad_()
    (expected,) = torch.autograd.grad(functional.gelu(copy), copy, upstream)
    assert_equal(captured.outputs("Functional.gelu.0.backward"), [expected])
    assert_equal(captured.inputs("Tensor.tanh_.0.backward"), [expected.view(-1)])


@pytest.mark.parametrize("equation", ["bij,kj->bik", "bij,kj->kib"])
def test_an_output_that_is_a_view_and_is_written_later_keeps_its_gradient(
    capture: Capture, equation: str
) -> None:
    x, w = leaves((2, 3, 4), (5, 4))
    copies = [t.detach().clone().requires_grad_() for t in (x, w)]
    result = torch.einsum(equation, *copies)
    assert result._is_view()
    upstream = torch.randn_like(result)
    expected = torch.autograd.grad(result, copies, upstream * 2.0)

    captured = capture(lambda: torch.einsum(equation, x, w).mul_(2.0).backward(upstream))

    assert_equal(captured.inputs("Torch.einsum.0.backward"), [upstream * 2.0])
    assert_equal(captured.outputs("Torch.einsum.0.backward"), expected)
    assert_equal(captured.outputs("Tensor.mul_.0.backward"), [upstream * 2.0])


def test_residual_addition_in_place(capture: Capture) -> None:
    x, w = leaves((3, 4), (4, 4))
    upstream = torch.randn(3, 4)

    def run() -> None:
        hidden = x * 2.0
        hidden += functional.linear(x, w)
        hidden.backward(upstream)

    captured = capture(run)
    assert_equal(captured.outputs("Tensor.__iadd__.0.backward"), [upstream, upstream])
    expected = torch.autograd.grad(functional.linear(x, w), (x, w), upstream)
    assert_equal(captured.outputs("Functional.linear.0.backward"), expected)


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
