"""A right CPU whose kernels round on their way has no errors, whatever the data are like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from precheck_models import Capture, capture_into, unseen
from torch.nn import functional

from tensorprobe.precheck.checker import Checker
from tensorprobe.precheck.outcome import CallResult
from tensorprobe.precheck.plan import plan_calls


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


def check(run: Callable[[], None], name: str, capture: Capture) -> CallResult:
    part = capture(run)
    (call,) = [call.name for call in plan_calls(part) if name in call.name]
    return Checker(part, torch.device("cpu")).check(call)


def made(*shape: int, dtype: torch.dtype, size: float = 1.0, seed: int = 1) -> torch.Tensor:
    with unseen():
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size
        return drawn.to(dtype).requires_grad_()


@pytest.mark.parametrize("first", [1.0, 50.0])
@pytest.mark.parametrize("rows", [64, 512, 4096])
def test_a_norms_gradients_that_are_summed_in_a_half(
    rows: int, first: float, capture: Capture
) -> None:
    """Also where one row, as that of a class token, swallows what the others add."""
    half = torch.bfloat16

    def run() -> None:
        given = made(rows, 64, dtype=half)
        weight, shift = made(64, dtype=half, seed=2), made(64, dtype=half, seed=3)
        result = functional.layer_norm(given, (64,), weight, shift)
        with unseen():
            gradient = made(rows, 64, dtype=half, seed=4).detach()
            gradient[0] *= first
        result.backward(gradient)

    result = check(run, "layer_norm", capture)
    assert result.forward == "pass" and result.backward in ("pass", "warning"), result


def test_an_embedding_whose_rows_are_used_often(capture: Capture) -> None:
    def run() -> None:
        with unseen():
            places = torch.arange(2048) % 7
        result = functional.embedding(places, made(16, 64, dtype=torch.bfloat16))
        result.backward(made(2048, 64, dtype=torch.bfloat16, seed=2).detach())

    result = check(run, "embedding", capture)
    assert result.forward == "pass" and result.backward in ("pass", "warning"), result


def test_gradients_at_the_lower_end_of_the_range(capture: Capture) -> None:
    half = torch.float16

    def run() -> None:
        q, k, v = (made(2, 4, 128, 16, dtype=half, seed=seed) for seed in (1, 2, 3))
        result = functional.scaled_dot_product_attention(q, k, v)
        result.backward(made(2, 4, 128, 16, dtype=half, size=1e-5, seed=4).detach())

    result = check(run, "scaled_dot_product_attention", capture)
    assert (result.forward, result.backward) == ("pass", "pass"), result
