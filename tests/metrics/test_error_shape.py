"""The shape of an error: how many elements, one factor, fewer bits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from tensorprobe.dtypes import DTYPES
from tensorprobe.metrics.error_shape import ErrorShape, measure_error_shape
from tensorprobe.tensor_data import TensorData

COUNT = 100_000


def tensor(values: npt.NDArray[np.float32]) -> TensorData:
    return TensorData(DTYPES["torch.float32"], values)


def numbers() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)


def measure(got: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> ErrorShape:
    found = measure_error_shape(tensor(got), tensor(wanted), 1e-6)
    assert found is not None
    return found


def test_one_wrong_element_is_one() -> None:
    wanted = numbers()
    got = wanted.copy()
    got[70_000] += 0.5
    found = measure(got, wanted)
    assert (found.unequal, found.beyond, found.worst) == (1, 1, 70_000)
    assert found.largest == pytest.approx(0.5, rel=1e-6)
    assert found.relative == pytest.approx(0.5 / np.linalg.norm(wanted.astype(float)), rel=1e-6)


def test_a_factor_is_all_of_the_error() -> None:
    wanted = numbers()
    found = measure((wanted.astype(np.float64) * 1.01).astype(np.float32), wanted)
    assert found.scale == pytest.approx(0.01, rel=1e-4)
    assert found.relative == pytest.approx(0.01, rel=1e-4)


def test_what_is_not_finite_is_the_worst() -> None:
    wanted = numbers()
    got = wanted.copy()
    got[3], got[40_000] = 5.0, math.nan
    wanted[9] = got[9] = math.inf
    found = measure(got, wanted)
    assert (found.nonfinite, found.worst, found.unequal) == (1, 40_000, 2)
    assert math.isinf(found.relative)


@pytest.mark.parametrize("bits", [8, 11])
def test_fewer_bits_are_seen(bits: int) -> None:
    wanted = numbers()
    words = wanted.view(np.uint32) & np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)
    found = measure(words.view(np.float32), wanted)
    assert (found.bits, found.reference_bits) == (bits, 0)


def test_nothing_can_be_said_of_other_shapes_or_of_nothing() -> None:
    empty = np.zeros(0, np.float32)
    assert measure_error_shape(tensor(numbers()), tensor(empty), 1e-6) is None
    assert measure_error_shape(tensor(empty), tensor(empty), 1e-6) is None
