"""Rounding noise moves results by as much as rounding does."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.precheck.noise import RoundingNoise, disturb
from warm_python import run_warm


def noise(dtype: torch.dtype, unit: float) -> RoundingNoise:
    return RoundingNoise(dtype, unit, torch.Generator().manual_seed(1))


def test_what_computes_is_moved_and_what_moves_numbers_is_not() -> None:
    tensor = torch.ones(1000, dtype=torch.float64)
    numbers = torch.linspace(1, 20, 10_000, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with RoundingNoise(torch.bfloat16, 2.0**-8, generator, by_steps=False):
        copied = tensor.clone().reshape(10, 100).T
        exact = numbers * 3
        moved = exact.clone()
    assert torch.equal(exact, numbers * 3)
    assert torch.equal(copied, torch.ones(100, 10, dtype=torch.float64))
    error = (moved / numbers / 3 - 1) * 2**8
    assert 0.99 < float(error.max()) <= 1
    assert -1 <= float(error.min()) < -0.99
    assert abs(float(error.mean())) < 0.05 and abs(float(error.square().mean()) - 1 / 3) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_numbers_have_equal_errors_and_another_run_has_others(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1.5, 2.5, 1.5, 2.5], dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    runs = []
    for _ in range(2):
        with RoundingNoise(torch.bfloat16, 2.0**-8, generator):
            runs.append((numbers * 2).clone())
    assert all(torch.equal(run[:2], run[2:]) for run in runs)
    assert not torch.equal(runs[0], runs[1])
    assert float(runs[0][0] / 3 - 1) != float(runs[0][1] / 5 - 1)


def test_a_kernel_of_several_steps_is_taken_apart() -> None:
    """The gradient of one normalised element is 0, but only after a cancellation."""
    tensor = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    result = torch.nn.functional.layer_norm(tensor, (1,))
    with noise(torch.float32, 2.0**-24):
        (gradient,) = torch.autograd.grad(result, tensor, torch.ones(1, dtype=torch.float64))
    assert gradient.item() != 0
    assert abs(gradient.item()) < 1e-3


def test_a_half_overflows_on_the_way() -> None:
    tensor = torch.tensor([300.0], dtype=torch.float32)
    with noise(torch.float16, 2.0**-11):
        result = (tensor * tensor) / 1000
    assert result.item() == float("inf")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_what_is_no_float_stays(dtype: torch.dtype) -> None:
    tensor = torch.ones(5).to(dtype)
    disturb(tensor, 0.5, torch.Generator())
    assert torch.equal(tensor, torch.ones(5).to(dtype))


def test_zeros_of_inputs_stay_zero() -> None:
    tensor = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    disturb(tensor, 2.0**-8, torch.Generator().manual_seed(2))
    assert tensor[0] == 0 and tensor[1] != 1 and tensor[2] < 0


def test_noise_does_not_import_the_compiler() -> None:
    """It takes more than a second, which most checks do not take."""
    script = """
import sys, torch
from tensorprobe.precheck.noise import RoundingNoise
given = torch.rand(4, dtype=torch.float64, requires_grad=True)
with RoundingNoise(torch.float32, 2.0**-24, torch.Generator()):
    result = torch.sinc(given).atanh() * torch.nn.functional.softsign(given)
    torch.autograd.grad(result.sum(), given)
print("torch._dynamo" in sys.modules)
"""
    done = run_warm(script)
    assert done.stdout.strip() == "False", done.stderr
