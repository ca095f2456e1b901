"""Views and writes in place: each call has the gradients before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gradient_runs import Capture, Captured, assert_equal, capturing, leaves
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensorprobe.capture import PrecisionDebugger
from torch_abilities import tells_of_indexing

TOLD_OF_ITEMS = pytest.mark.skipif(
    not tells_of_indexing(), reason="this torch does not tell of items"
)


@pytest.fixture
def capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Capture]:
    with capturing(tmp_path, caplog) as run:
        yield run


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


def test_a_written_view_that_is_used_beside_its_base_has_the_whole_gradient(
    capture: Capture,
) -> None:
    (x,) = leaves((4,))
    of_view, of_base = torch.randn(2), torch.randn(4)

    def run() -> None:
        base = x * 2.0
        view = base[:2]
        view.mul_(3.0)
        ((view * of_view).sum() + (base * of_base).sum()).backward()

    captured = capture(run)
    whole = of_view + of_base[:2]
    assert_equal(captured.inputs("Tensor.mul_.0.backward"), [whole])
    assert_equal(captured.outputs("Tensor.mul_.0.backward"), [whole * 3.0])


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


# --- calls that return nothing and write into an argument ----------------------------------------

_ROWS = torch.tensor([True, False, True])
# What is written into a 3×4 tensor: where, and the shape of what; None: a number.
SETS: dict[str, tuple[Any, tuple[int, ...] | None]] = {
    "row": (1, (4,)),
    "rows of one": (slice(1, 3), (4,)),
    "column": ((slice(None), -1), (3,)),
    "element": ((1, 2), ()),
    "mask": (_ROWS, (2, 4)),
    "mask of one": (_ROWS, (4,)),
    "whole": (..., (3, 4)),
    "number": (0, None),
}
# What is written into, from a leaf of 2×3×4.
TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "computed": lambda x: x[0].sin(),
    "view": lambda x: x.sin()[1],
    "without a gradient": lambda x: x[0].detach().sin(),
    "view without a gradient": lambda x: x.detach().sin()[1],
}


def set_gradients(
    target: Tensor, index: Any, value: Tensor | float, upstream: Tensor
) -> list[Tensor | None]:
    """What autograd says of `target[index] = value`, argument by argument."""
    before = target.detach().clone().requires_grad_(target.requires_grad)
    given = value.detach().clone().requires_grad_() if isinstance(value, Tensor) else value
    after = before.clone()
    after[index] = given
    wanted = [one for one in (before, given) if isinstance(one, Tensor) and one.requires_grad]
    found = iter(torch.autograd.grad(after, wanted, upstream))
    arguments = [one for one in (before, index, given) if isinstance(one, Tensor)]
    return [next(found) if one.requires_grad else None for one in arguments]


@TOLD_OF_ITEMS
@pytest.mark.parametrize("precision", ["fp32", "autocast"])
@pytest.mark.parametrize(
    ("where", "into"),
    [(w, i) for w in SETS for i in TARGETS if SETS[w][1] is not None or "without" not in i],
)
def test_an_item_that_is_set_has_the_gradients_before_and_after_it(
    capture: Capture, where: str, into: str, precision: str
) -> None:
    index, shape = SETS[where]
    x, v = leaves((2, 3, 4), shape or ())
    upstream = torch.randn(3, 4)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            target = TARGETS[into](x)
            target[index] = 2.5 if shape is None else v * 1.0
            target.backward(upstream)

    captured = capture(run)
    expected = set_gradients(TARGETS[into](x), index, 2.5 if shape is None else v, upstream)
    assert_equal(captured.inputs("Tensor.__setitem__.0.backward"), [upstream])
    assert_equal(captured.outputs("Tensor.__setitem__.0.backward"), expected)


@TOLD_OF_ITEMS
@pytest.mark.parametrize("into", ["computed", "view"])
def test_items_set_one_after_another_have_each_its_gradients(capture: Capture, into: str) -> None:
    x, v, w = leaves((2, 3, 4), (4,), (4,))
    upstream = torch.randn(3, 4)

    def run() -> None:
        target = TARGETS[into](x)
        target[0] = target[2]
        target[1] = v
        target[1:] = w
        target.backward(upstream)

    captured = capture(run)
    after_row = upstream * torch.tensor([[1.0], [0.0], [0.0]])
    before_rows = [after_row, upstream[1:].sum(0)]
    assert_equal(captured.inputs("Tensor.__setitem__.2.backward"), [upstream])
    assert_equal(captured.outputs("Tensor.__setitem__.2.backward"), before_rows)
    assert_equal(captured.inputs("Tensor.__setitem__.1.backward"), [after_row])
    assert_equal(captured.outputs("Tensor.__setitem__.1.backward"), [after_row, after_row[1]])
    # The row that was copied gets its gradient as what was written, and none as what was there.
    assert_equal(captured.inputs("Tensor.__setitem__.0.backward"), [after_row])
    copied = [torch.zeros(3, 4), upstream[0]]
    assert_equal(captured.outputs("Tensor.__setitem__.0.backward"), copied)


@TOLD_OF_ITEMS
def test_an_item_that_is_set_in_a_checkpointed_function_has_its_gradients(
    capture: Capture,
) -> None:
    x, v = leaves((3, 4), (4,))
    upstream = torch.randn(3, 4)

    def fill(x: Tensor, v: Tensor) -> Tensor:
        target = x.sin()
        target[1] = v
        return target.exp()

    captured = capture(lambda: checkpoint(fill, x, v, use_reentrant=False).backward(upstream))
    into = upstream * fill(x, v).detach()
    assert_equal(captured.inputs("Tensor.__setitem__.0.backward"), [into])
    expected = set_gradients(x, 1, v, into)
    assert_equal(captured.outputs("Tensor.__setitem__.0.backward"), expected)


@TOLD_OF_ITEMS
@pytest.mark.parametrize("is_view", [False, True])
def test_training_that_sets_items_is_the_same_to_the_bit(capture: Capture, is_view: bool) -> None:
    x, v = leaves((2, 300, 40), (40,))

    def gradients() -> list[Tensor]:
        base = x.sin()
        target = base[1] if is_view else base
        other = base.view(-1)
        target[1] = v
        used = base.clone().square().sum() + other.exp().sum()
        target[..., 2] = v.sum()
        parts = (used.sin(), base.cos().mean(), other.exp().mean(), (target * v).tanh().sum())
        sum(parts).backward()
        found = [tensor.grad for tensor in (x, v) if tensor.grad is not None]
        x.grad = v.grad = None
        return found

    watched: list[Tensor] = []
    plain = gradients()
    captured = capture(lambda: watched.extend(gradients()))
    assert len(plain) == 2 and all(map(torch.equal, plain, watched))
    assert "Tensor.__setitem__.1.backward" in captured.names


def write_twice(target: Tensor, unused: Tensor, *, value: Tensor) -> None:
    target.mul_(2.0)
    target.add_(value)


def test_a_function_of_the_users_own_that_only_writes_has_its_gradients(
    tmp_path: Path,
) -> None:
    x, v = leaves((3, 4), (3, 4))
    upstream = torch.randn(3, 4)
    home = SimpleNamespace(__name__="home", write_twice=write_twice)
    debugger = PrecisionDebugger(dump_path=tmp_path, task="tensor")
    debugger.register_custom_api(home, "write_twice", "Own")
    debugger.start()
    target = x * 1.0
    home.write_twice(target, v * 3.0, value=v * 1.0)
    target.backward(upstream)
    debugger.step()
    debugger.close()
    captured = Captured(tmp_path)
    assert_equal(captured.inputs("Own.write_twice.0.backward"), [upstream])
    assert_equal(captured.outputs("Own.write_twice.0.backward"), [upstream * 2, None, upstream])


class ReadsAndWrites(nn.Module):
    """Uses its input and then writes into it."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()
        x.mul_(3)
        return x * total


def test_a_view_that_is_used_before_it_is_written_has_the_gradients_of_both(
    capture: Capture,
) -> None:
    model = ReadsAndWrites()
    (leaf,) = leaves((4, 2))
    flat = (leaf * 1).view(8)
    bare = leaf.detach().flatten().requires_grad_()
    (bare * 3 * bare.sum()).sum().backward()

    captured = capture(lambda: model(flat).sum().backward(), level="L0", model=model)
    assert_equal(captured.outputs("Module.ReadsAndWrites.backward.0"), [bare.grad])
