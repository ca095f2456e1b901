"""Gradients in a dump are those that autograd computes, in the order of the call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_runs import Capture, assert_equal, capturing, flat, leaves
from torch import Tensor, nn
from torch.nn import functional

from torch_abilities import tells_of_indexing


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    with capturing(tmp_path, caplog) as run:
        yield run


# --- one call: any API ---------------------------------------------------------------------------

_INDEX = torch.tensor([2, 0, 2])
_CLASSES = torch.tensor([1, 0, 3, -100, 2])
_MASK = torch.rand(3, 4, generator=torch.Generator().manual_seed(7)) > 0.5


def _written(hidden: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Write into a copy: nobody may write into a leaf."""
    hidden = hidden * 1
    hidden[index] = value
    return hidden


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
    "bilinear": ("Functional.bilinear", [(4, 3), (4, 2), (5, 3, 2), (5,)], functional.bilinear),
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
    "conv2d": ("Functional.conv2d", [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], functional.conv2d),
    "conv1d without bias": ("Functional.conv1d", [(2, 3, 6), (4, 3, 3)], functional.conv1d),
    "conv_transpose2d": (
        "Functional.conv_transpose2d",
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
    "set row": ("Tensor.__setitem__", [(3, 4), (4,)], lambda x, v: _written(x, 1, v)),
    "set rows": ("Tensor.__setitem__", [(3, 4), (4,)], lambda x, v: _written(x, slice(2), v)),
    "set number": ("Tensor.__setitem__", [(3, 4)], lambda x: _written(x, (0, 1), 2.5)),
    "set masked": ("Tensor.__setitem__", [(3, 4), ()], lambda x, v: _written(x, _MASK, v)),
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
    if case.startswith(("index", "set ")) and not tells_of_indexing():
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
