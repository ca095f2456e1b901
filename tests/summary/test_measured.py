"""Every tensor has numbers, whatever they are."""

from __future__ import annotations

import math

import pytest
import torch

from tensorprobe.summary.statistics import StatisticsQueue


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_complex_number_too_large_for_its_size_is_infinite(shape: tuple[int, ...]) -> None:
    huge = torch.full(shape, complex(1.7e308, -1.7e308), dtype=torch.complex128)
    assert StatisticsQueue().ask(huge).numbers == (math.inf,) * 4
