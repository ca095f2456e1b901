"""What rounding explains, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tensorprobe.rounding.floor import (
    Floor,
    accumulation_roundoff,
    half_ulp,
    rounds_once,
    working_roundoffs,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_half_a_unit_in_the_last_place_is_numpys_spacing(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.cat([torch.randn(500) * 10.0**power for power in (-7, -3, 0, 3)]).to(dtype)
    spacing = np.spacing(values.abs().numpy()).astype(np.float64)
    assert half_ulp(values.double(), dtype).tolist() == (spacing / 2).tolist()


def test_rounding_to_nearest_stays_within_half_a_unit_and_cutting_off_does_not() -> None:
    torch.manual_seed(0)
    values = torch.randn(5000)
    floor = half_ulp(values.double(), torch.bfloat16)
    rounded = values.to(torch.bfloat16).double()
    cut = (values.view(torch.int32) & ~0xFFFF).view(torch.float32).double()
    assert ((rounded - values.double()).abs() / floor).max() <= 1
    assert ((cut - values.double()).abs() / floor).max() > 1.9


def test_sums_are_kept_in_float32_or_better() -> None:
    assert accumulation_roundoff(torch.bfloat16) == 2.0**-24
    assert accumulation_roundoff(torch.float64) == 2.0**-53


def test_only_matrix_products_round_once_on_the_way_back() -> None:
    assert rounds_once("mul", "forward")
    assert not rounds_once("mul", "backward")
    assert rounds_once("linear", "backward")
    assert not rounds_once("softmax", "forward")


def test_what_adds_up_windows_rounds_more_than_once() -> None:
    assert rounds_once("conv2d", "forward")
    assert not rounds_once("conv_transpose2d", "forward")
    assert not rounds_once("conv2d", "backward")


def test_matrix_products_of_float32_may_run_in_fewer_bits() -> None:
    assert working_roundoffs("linear", "forward", torch.float32) == (2.0**-24, 2.0**-11, 2.0**-8)
    assert working_roundoffs("softmax", "forward", torch.bfloat16) == (2.0**-8,)


@pytest.mark.parametrize("terms", [8, 512])
def test_the_bound_holds_for_a_sum_in_the_least_lucky_order(terms: int) -> None:
    """A product of matrices that adds one term after the other, in float32."""
    torch.manual_seed(terms)
    a, b = torch.randn(40, terms), torch.randn(terms, 30)
    exact = a.double() @ b.double()
    naive = torch.zeros(40, 30)
    for k in range(terms):
        naive = naive + a[:, k : k + 1] * b[k]
    spread = torch.sqrt((a.double() ** 2) @ (b.double() ** 2) * 2)
    floor = Floor(half_ulp(exact, torch.float32), spread, 0.0, terms, 2.0**-24)
    bound = floor.bound(2.0**-24)
    assert ((naive.double() - exact).abs() / bound).max() < 1
    # And a fault of one in ten thousand does not hide below it.
    assert ((exact * 1e-4).abs() / bound).max() > 10


def test_a_result_without_rounding_has_a_floor_of_its_own_rounding_alone() -> None:
    values = functional.relu(torch.randn(100)).double() + 1
    floor = Floor(half_ulp(values, torch.float32), torch.zeros_like(values), 0.0, 1, 2.0**-24)
    assert torch.equal(floor.bound(2.0**-24), floor.rounding)
