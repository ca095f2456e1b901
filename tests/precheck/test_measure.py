"""The numbers of the details, against plain arithmetic."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tensorprobe.precheck.measure import measure_output


def test_the_numbers_of_two_vectors() -> None:
    ours, theirs = torch.tensor([1.0, 2.0, 4.0, 0.0]), torch.tensor([1.0, 2.5, 3.0, 0.0])
    numbers = measure_output(ours, theirs)
    assert numbers.pair.max_abs_error == 1.0
    assert numbers.root_mean_square == pytest.approx(math.sqrt((0.25 + 1) / 4))
    assert numbers.mean_relative == pytest.approx((0 + 0.2 + 1 / 3) / 3)
    assert numbers.balance == 0.0
    assert numbers.within == (0.5, 0.5, 0.5)
    assert numbers.distance == pytest.approx(math.sqrt(1.25 / 16.25))
    size = math.sqrt(16.25 / 4)
    assert numbers.worst == pytest.approx(1 / (3 + size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_units_in_the_last_place(dtype: torch.dtype) -> None:
    one = torch.ones(4, dtype=dtype)
    step = torch.finfo(dtype).eps
    numbers = measure_output(one + torch.tensor([0, 1, 2, 3], dtype=dtype) * step, one)
    assert numbers.ulp_max == 3
    assert numbers.ulp_mean == 1.5


def test_units_across_zero_and_equal_zeros() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    numbers = measure_output(torch.tensor([tiny, 0.0]), torch.tensor([-tiny, -0.0]))
    assert numbers.ulp_max == 2


def test_non_finite_places() -> None:
    inf, nan = float("inf"), float("nan")
    numbers = measure_output(torch.tensor([inf, nan, 1.0]), torch.tensor([inf, 1.0, 1.0]))
    assert numbers.nonfinite_wrong == pytest.approx(1 / 3)
    assert numbers.distance is None


def test_complex_numbers() -> None:
    numbers = measure_output(torch.tensor([1 + 1j]), torch.tensor([1 + 0j]))
    assert numbers.pair.max_abs_error == 1.0
    assert numbers.ulp_max is None or numbers.ulp_max > 0


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_kernel_and_torch_measure_the_same(
    dtype: torch.dtype, wide: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = torch.Generator().manual_seed(2)
    truth = torch.randn(300, 200, generator=noise, dtype=torch.float64).to(wide)
    truth[5, :7] = 0.0
    truth[6, 0], truth[7, 0] = float("nan"), float("inf")
    ours = (truth * (1 + 0.01 * torch.randn(truth.shape, generator=noise))).to(dtype)
    ours[8, 0] = float("nan")
    found = measure_output(ours, truth)
    monkeypatch.setenv("TENSORPROBE_NO_KERNEL", "1")
    expected = measure_output(ours, truth)
    for field in dataclasses.fields(expected):
        if field.name != "pair":
            value, other = getattr(expected, field.name), getattr(found, field.name)
            is_same = other == value or other == pytest.approx(value, rel=1e-12)
            assert is_same, field.name
    assert found.pair.unequal == expected.pair.unequal
    assert found.pair.within == expected.pair.within


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_what_is_measured_stays_as_it_is(dtype: torch.dtype) -> None:
    ours, theirs = torch.tensor([-1.0, 2.0]).to(dtype), torch.tensor([-1.5, 2.0]).to(dtype)
    measure_output(ours, theirs)
    assert ours.tolist() == [-1.0, 2.0] and theirs.tolist() == [-1.5, 2.0]


@pytest.mark.parametrize("shape", [(1,) * 40, (2**62, 0), (0,)])
def test_shapes_that_numpy_does_not_take(shape: tuple[int, ...]) -> None:
    ours = torch.empty(shape) if 0 in shape else torch.ones(shape)
    assert measure_output(ours, ours.double()).pair.max_abs_error == 0
