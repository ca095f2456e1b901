"""A device that computes a little off is found: in the result, and in the gradient alone.

Both sides of a check run here on the CPU, so a fault is planted by dtype: the recorded one gets it,
the wider one of the reference does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from precheck_models import Capture, capture_into, unseen
from torch.nn import functional

from tensorprobe.precheck.checker import Checker
from tensorprobe.precheck.plan import plan_calls
from tensorprobe.replay import functions
from tensorprobe.replay.arguments import tensors_in
from tensorprobe.store import RankDump

FAULTS = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-3}


@dataclass(frozen=True)
class Operator:
    """Where a function lives, and a call of it on tensors of one dtype."""

    home: Any
    name: str
    call: Callable[[Callable[..., torch.Tensor]], Any]


def op(home: Any, name: str, call: Callable[[Any, Any], Any]) -> Operator:
    return Operator(home, name, lambda make: call(getattr(home, name), make))


F, T, M = functional, torch, torch.Tensor
OPERATORS = [
    op(F, "linear", lambda f, x: f(x(16, 32), x(8, 32), x(8))),
    op(F, "gelu", lambda f, x: f(x(16, 32))),
    op(F, "silu", lambda f, x: f(x(16, 32))),
    op(F, "relu", lambda f, x: f(x(16, 32))),
    op(F, "softplus", lambda f, x: f(x(16, 32))),
    op(F, "softmax", lambda f, x: f(x(16, 32), dim=-1)),
    op(F, "log_softmax", lambda f, x: f(x(16, 32), dim=-1)),
    op(F, "layer_norm", lambda f, x: f(x(16, 32), (32,), x(32), x(32))),
    op(F, "rms_norm", lambda f, x: f(x(16, 32), (32,), x(32))),
    op(F, "group_norm", lambda f, x: f(x(4, 8, 6), 2, x(8), x(8))),
    op(F, "conv1d", lambda f, x: f(x(2, 4, 16), x(6, 4, 3), x(6))),
    op(F, "conv2d", lambda f, x: f(x(2, 4, 8, 8), x(6, 4, 3, 3), x(6), padding=1)),
    op(F, "avg_pool2d", lambda f, x: f(x(2, 4, 8, 8), 2)),
    op(F, "max_pool2d", lambda f, x: f(x(2, 4, 8, 8), 2)),
    op(F, "interpolate", lambda f, x: f(x(2, 4, 8), scale_factor=2.0, mode="linear")),
    op(F, "pad", lambda f, x: f(x(8, 8), (1, 2))),
    op(F, "mse_loss", lambda f, x: f(x(16, 32), x(16, 32), reduction="none")),
    op(F, "cross_entropy", lambda f, x: f(x(16, 10), torch.arange(16) % 10, reduction="none")),
    op(F, "embedding", lambda f, x: f(torch.arange(24) % 12, x(12, 16))),
    op(F, "scaled_dot_product_attention",
       lambda f, x: f(x(2, 2, 8, 16), x(2, 2, 8, 16), x(2, 2, 8, 16))),
    op(T, "matmul", lambda f, x: f(x(16, 32), x(32, 8))),
    op(T, "bmm", lambda f, x: f(x(3, 8, 16), x(3, 16, 4))),
    op(T, "add", lambda f, x: f(x(16, 32), x(16, 32), alpha=2)),
    op(T, "mul", lambda f, x: f(x(16, 32), x(32))),
    op(T, "div", lambda f, x: f(x(16, 32), x(16, 32).detach().abs() + 1)),
    op(T, "exp", lambda f, x: f(x(16, 32))),
    op(T, "tanh", lambda f, x: f(x(16, 32))),
    op(T, "sigmoid", lambda f, x: f(x(16, 32))),
    op(T, "einsum", lambda f, x: f("ij,kj->ik", x(8, 16), x(4, 16))),
    op(T, "cat", lambda f, x: f([x(4, 8), x(6, 8)], dim=0)),
    op(T, "where", lambda f, x: f(torch.arange(32) % 2 == 0, x(16, 32), x(16, 32))),
    op(M, "sum", lambda f, x: f(x(16, 32).abs(), dim=1)),
    op(M, "mean", lambda f, x: f(x(16, 32).abs(), dim=0)),
    op(M, "transpose", lambda f, x: f(x(16, 32), 0, 1)),
    op(M, "masked_fill", lambda f, x: f(x(16, 32), torch.arange(32) % 3 == 0, 0.5)),
    op(M, "cumsum", lambda f, x: f(x(8, 32).abs(), dim=1)),
    op(M, "sqrt", lambda f, x: f(x(16, 32).abs() + 0.1)),
    op(M, "__mul__", lambda _, x: x(16, 32) * 2.5),
]  # fmt: skip
IDS = [f"{getattr(op.home, '__name__', 'torch').split('.')[-1]}.{op.name}" for op in OPERATORS]


Spread = Callable[[torch.Tensor], torch.Tensor]


def everywhere(_: torch.Tensor) -> torch.Tensor:
    """Every element is too large."""
    return torch.tensor(1.0)


def both_ways(result: torch.Tensor) -> torch.Tensor:
    """One element is too large and the next too small."""
    return (1.0 - 2.0 * (torch.arange(result.numel()) % 2)).reshape(result.shape)


def one_element(result: torch.Tensor) -> torch.Tensor:
    """An element of typical magnitude is off by ten times as much, and no other."""
    size = result.detach().float().abs()
    fault = torch.zeros(result.numel())
    fault[(size - size.square().mean().sqrt()).abs().argmin()] = 10.0
    return fault.reshape(result.shape)


class _WrongGradient(torch.autograd.Function):
    """Changes nothing on the way forward and scales what comes back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, fault: float, spread: Spread) -> torch.Tensor:
        ctx.fault, ctx.spread = fault, spread
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given = gradients[0].float()
        return (given + given * ctx.fault * ctx.spread(given)).to(gradients[0].dtype), None, None


def faulty(
    right: Callable[..., Any],
    dtype: torch.dtype,
    *,
    gradient_only: bool,
    spread: Spread = everywhere,
) -> Callable[..., Any]:
    fault = FAULTS[dtype]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        given = [t for t in tensors_in((args, kwargs)) if t.is_floating_point()]
        if not any(tensor.dtype is dtype for tensor in given):
            return result
        if gradient_only:
            return _WrongGradient.apply(result, fault, spread)
        wide = result.float()
        return (wide + wide * fault * spread(wide)).to(result.dtype)

    return wrong


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


@pytest.fixture(autouse=True)
def _forget_functions() -> Iterator[None]:
    functions.find_function.cache_clear()
    yield
    functions.find_function.cache_clear()


def captured(operator: Operator, dtype: torch.dtype, capture: Capture) -> RankDump:
    noise = torch.Generator().manual_seed(11)

    def make(*shape: int) -> torch.Tensor:
        with unseen():
            return torch.randn(shape, generator=noise).to(dtype).requires_grad_()

    def run() -> None:
        result = operator.call(make)
        with unseen():
            gradient = torch.randn(result.shape, generator=noise).to(dtype)
        result.backward(gradient)

    return capture(run)


def checker_of(operator: Operator, dtype: torch.dtype, capture: Capture) -> tuple[Checker, str]:
    """Capture an operator's call; return what checks it, and its name."""
    part = captured(operator, dtype, capture)
    (name,) = [c.name for c in plan_calls(part) if f".{operator.name}.0." in c.name]
    return Checker(part, torch.device("cpu")), name


@pytest.mark.parametrize("dtype", FAULTS, ids=str)
@pytest.mark.parametrize("operator", OPERATORS, ids=IDS)
def test_a_planted_fault_is_an_error_and_a_right_operator_is_none(
    operator: Operator, dtype: torch.dtype, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = captured(operator, dtype, capture)
    checker = Checker(part, torch.device("cpu"))
    names = [call.name for call in plan_calls(part)]
    checked = [checker.check(name) for name in names]
    assert all("error" not in (result.forward, result.backward) for result in checked), checked
    (name,) = [name for name in names if f".{operator.name}.0." in name]
    right = getattr(operator.home, operator.name)
    for gradient_only in (False, True):
        functions.find_function.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(
                operator.home, operator.name, faulty(right, dtype, gradient_only=gradient_only)
            )
            result = checker.check(name)
        verdict = result.backward if gradient_only else result.forward
        assert verdict == "error", (gradient_only, result)
        if gradient_only:
            assert result.forward == "pass"


_STEEP = [
    op(T, "log", lambda f, x: f(x(16, 32).abs())),
    op(T, "tan", lambda f, x: f(x(16, 32))),
    op(T, "digamma", lambda f, x: f(x(16, 32))),
    op(T, "lgamma", lambda f, x: f(x(16, 32))),
    op(T, "xlogy", lambda f, x: f(x(5), x(5).detach().abs())),
]


@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("operator", _STEEP, ids=lambda operator: str(operator.name))
def test_a_fault_of_a_steep_function_is_no_matter_of_its_inputs(
    operator: Operator, gradient_only: bool, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rounding of the inputs would move the result as far; but nothing rounds them."""
    checker, name = checker_of(operator, torch.float16, capture)
    right = checker.check(name)
    assert "error" not in (right.forward, right.backward), right
    wrong = faulty(
        getattr(operator.home, operator.name), torch.float16, gradient_only=gradient_only
    )
    functions.find_function.cache_clear()
    monkeypatch.setattr(operator.home, operator.name, wrong)
    result = checker.check(name)
    assert (result.backward if gradient_only else result.forward) == "error", result


_SHORT = [
    op(M, "sum", lambda f, x: f(x(16, 32).abs())),
    op(F, "mse_loss", lambda f, x: f(x(16, 32), x(16, 32))),
    op(T, "mul", lambda f, x: f(x(3), x(3))),
    op(T, "sigmoid", lambda f, x: f(x(2))),
    op(T, "matmul", lambda f, x: f(x(2, 32), x(32, 2))),
    op(F, "softmax", lambda f, x: f(x(2, 4), dim=-1)),
]


@pytest.mark.parametrize("dtype", FAULTS, ids=str)
@pytest.mark.parametrize("operator", _SHORT, ids=lambda operator: str(operator.name))
def test_a_fault_of_few_elements_and_of_every_half_precision_is_an_error(
    operator: Operator, dtype: torch.dtype, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, name = checker_of(operator, dtype, capture)
    right = getattr(operator.home, operator.name)
    wrong = right
    for each in FAULTS if dtype is not torch.float32 else (dtype,):
        if each is not torch.float32 or dtype is torch.float32:
            wrong = faulty(wrong, each, gradient_only=False)
    functions.find_function.cache_clear()
    monkeypatch.setattr(operator.home, operator.name, wrong)
    assert checker.check(name).forward == "error"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", OPERATORS, ids=IDS)
def test_a_fault_of_both_signs_is_no_rounding(
    operator: Operator, dtype: torch.dtype, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that are kept in a half err as much, but not alike for other inputs."""
    checker, name = checker_of(operator, dtype, capture)
    right = getattr(operator.home, operator.name)
    for gradient_only in (False, True):
        wrong = faulty(right, dtype, gradient_only=gradient_only, spread=both_ways)
        functions.find_function.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(operator.home, operator.name, wrong)
            result = checker.check(name)
        assert (result.backward if gradient_only else result.forward) == "error", result


_SINGLE = [
    op(T, "matmul", lambda f, x: f(x(64, 64), x(64, 64))),
    op(F, "softmax", lambda f, x: f(x(64, 64), dim=-1)),
    op(F, "layer_norm", lambda f, x: f(x(64, 64), (64,), x(64), x(64))),
    op(T, "add", lambda f, x: f(x(64, 64), x(64, 64))),
    op(F, "gelu", lambda f, x: f(x(64, 64))),
]


@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("operator", _SINGLE, ids=lambda operator: str(operator.name))
def test_one_element_that_is_off_by_a_tenth_is_an_error(
    operator: Operator, gradient_only: bool, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, name = checker_of(operator, torch.float16, capture)
    wrong = faulty(
        getattr(operator.home, operator.name),
        torch.float16,
        gradient_only=gradient_only,
        spread=one_element,
    )
    functions.find_function.cache_clear()
    monkeypatch.setattr(operator.home, operator.name, wrong)
    result = checker.check(name)
    assert (result.backward if gradient_only else result.forward) == "error", result
