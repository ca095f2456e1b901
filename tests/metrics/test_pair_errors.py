"""The errors of a candidate in one pass of the kernel, against plain arithmetic in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorprobe.metrics.kernel import compiled
from tensorprobe.metrics.pair import cosine, measure_pair, rounds_reference
from tensorprobe.metrics.pair_errors import ErrorLimits, measure_errors, measures_errors
from tensorprobe.summary.host import to_host

pytestmark = pytest.mark.skipif(not compiled(), reason="needs the compiled kernel")

PAIRS = [
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float64),
    (torch.float16, torch.float32),
    (torch.float16, torch.float64),
    (torch.float32, torch.float64),
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
]
LIMITS = ErrorLimits(0.7, 1e-3, 1e-6, 1)
BITS = {2: torch.int16, 4: torch.int32}


def numbers_of_every_size(count: int, reference: torch.dtype) -> torch.Tensor:
    noise = torch.Generator().manual_seed(count)
    exponents = torch.randint(-30, 17, (count,), generator=noise).double()
    wide = torch.randn(count, generator=noise, dtype=torch.float64) * 2**exponents
    wide[::7] = 0.0
    # Halfway between two numbers of a narrower dtype, and just beside it.
    wide[1::11] = 1 + 2.0**-8 + torch.randint(-1, 2, wide[1::11].shape, generator=noise) * 2.0**-20
    wide[2::11] = 1 + 2.0**-11
    return wide.to(reference)


def places(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.view(BITS[tensor.element_size()]).long()
    last = 1 << (8 * tensor.element_size() - 1)
    return torch.where(bits < 0, -(bits + last), bits)


@pytest.mark.parametrize(("narrow", "wide"), PAIRS, ids=str)
@pytest.mark.parametrize("count", [1, 9, 1024, 3001, 700_001])
def test_every_number_against_float64(narrow: torch.dtype, wide: torch.dtype, count: int) -> None:
    reference = numbers_of_every_size(count, wide)
    rounded = reference.to(narrow)
    noise = torch.Generator().manual_seed(1)
    candidate = rounded.double() * (1 + 0.02 * torch.randn(count, generator=noise).double())
    ours = candidate.to(narrow)
    found = measure_errors(to_host(ours), to_host(reference), LIMITS)
    is_finite = torch.isfinite(ours) & torch.isfinite(rounded)
    x, y = ours[is_finite].double(), rounded[is_finite].double()
    error, size = (x - y).abs(), y.abs()
    gaps = (places(ours) - places(rounded)).abs()[is_finite]
    small = size < LIMITS.small
    assert found.pairs == int(is_finite.sum())
    assert found.lean == int((x - y).sign().sum())
    assert found.nonzero == int((y != 0).sum())
    assert found.small == int(small.sum())
    assert found.small_wrong == int((small & (error > LIMITS.small_error)).sum())
    assert found.places == int(gaps.sum())
    assert found.places_max == int(gaps.max())
    assert found.places_over == int((gaps > 1).sum())
    assert found.worst == float((error / (size + LIMITS.mean_size)).max())
    expected = torch.where(size > 0, error / size, 0.0).sum()
    assert found.relative == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("narrow", "wide"), PAIRS[:5], ids=str)
def test_a_pair_is_rounded_while_it_is_read(narrow: torch.dtype, wide: torch.dtype) -> None:
    reference = numbers_of_every_size(5000, wide)
    reference[3:6] = torch.tensor([float("nan"), float("inf"), 3.4e38], dtype=wide)
    rounded = reference.to(narrow)
    assert rounds_reference(to_host(rounded).dtype, to_host(reference).dtype)
    same = measure_pair(to_host(rounded), to_host(reference), rounds=True)
    assert same.unequal == 0 and cosine(same) == 1.0
    ours = (rounded.double() * 1.01).to(narrow)
    found = measure_pair(to_host(ours), to_host(reference), rounds=True)
    assert found == measure_pair(to_host(ours), to_host(rounded))


def test_strided_and_expanded_sides() -> None:
    reference = numbers_of_every_size(600, torch.float32).reshape(20, 30)
    candidate = (reference * 1.01).bfloat16()
    flat = measure_errors(to_host(candidate), to_host(reference), LIMITS)
    turned = measure_errors(to_host(candidate.mT), to_host(reference.mT), LIMITS)
    assert turned[:-1] == flat[:-1]
    rows = [side[:1].expand(4, 30) for side in (candidate, reference)]
    dense = [row.contiguous() for row in rows]
    expanded = measure_errors(to_host(rows[0]), to_host(rows[1]), LIMITS)
    repeated = measure_errors(to_host(dense[0]), to_host(dense[1]), LIMITS)
    assert expanded[:-1] == repeated[:-1]
    assert expanded.relative == pytest.approx(repeated.relative)


def test_what_cannot_be_measured_is_refused() -> None:
    double = to_host(torch.ones(3, dtype=torch.float64))
    assert not measures_errors(double.dtype, double.dtype)
    with pytest.raises(ValueError, match="cannot be measured"):
        measure_errors(double, double, LIMITS)
    single = to_host(torch.ones(3))
    with pytest.raises(ValueError, match="got 3 and 2 elements"):
        measure_errors(single, to_host(torch.ones(2)), LIMITS)
    assert np.isfinite(measure_errors(single, single, LIMITS).worst)
