"""The numbers about one output of a checked call: candidate against the rounded reference.

The reference is rounded to the candidate's dtype first: that is the best the dtype can hold, and a
perfect candidate has no error at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tensorprobe.metrics.pair import (
    PairNumbers,
    Unavailable,
    cosine,
    error_ratio,
    measure_pair,
    relative_distance,
)
from tensorprobe.summary.host import to_host

__all__ = ["OutputNumbers", "measure_output"]

# Errors of more units in the last place than this are counted, by the width of the dtype.
_ULP_LIMITS = {2: 1, 4: 32, 8: 32}
# Below this a reference value counts as small, and an absolute error of more than that as wrong.
_SMALL = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-10, torch.float32: 2.0**-20}
_SMALL_ERROR = {torch.float16: 2.0**-16, torch.bfloat16: 2.0**-16, torch.float32: 2.0**-30}


@dataclass(frozen=True, slots=True)
class OutputNumbers:
    """What was measured of one floating-point output.

    Attributes:
        pair: the numbers of one pass over both sides.
        cosine: None where it has no value, as for one element.
        distance: norm of the error over norm of the reference; None with other non-finite places.
        within: the shares of elements with a relative error below 1e-2, 1e-3 and 1e-4.
        worst: the largest error of an element, relative to its size and the tensor's together.
        root_mean_square: of the errors.
        mean_relative: mean relative error where the reference is not 0.
        balance: how much more elements err to one side than to the other, 0 to 1.
        small_wrong: share of the elements with a small reference that are wrong.
        nonfinite_wrong: share of the elements whose non-finite value is not the reference's.
        ulp_max: largest error in units of the last place; None where the dtype has none.
        ulp_mean: mean error likewise.
        ulp_over: share of elements with an error over the limit of the dtype.
    """

    pair: PairNumbers
    cosine: float | None
    distance: float | None
    within: tuple[float, float, float]
    worst: float
    root_mean_square: float
    mean_relative: float
    balance: float
    small_wrong: float
    nonfinite_wrong: float
    ulp_max: float | None
    ulp_mean: float | None
    ulp_over: float | None


def measure_output(candidate: torch.Tensor, reference: torch.Tensor) -> OutputNumbers:
    """Measure one output.

    Args:
        candidate: the device's result, on the CPU.
        reference: the reference in the same dtype and shape.

    >>> numbers = measure_output(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    >>> numbers.pair.max_abs_error, numbers.within[0]
    (0.5, 0.5)
    """
    pair = measure_pair(to_host(candidate), to_host(reference))
    angle, distance = cosine(pair), relative_distance(pair)
    shares = tuple(pair.within[place] / pair.count if pair.count else 1.0 for place in (3, 1, 0))
    wrong = pair.nan_mismatch + pair.inf_mismatch
    common: dict[str, object] = {
        "pair": pair,
        "cosine": None if isinstance(angle, Unavailable) else angle,
        "distance": None if isinstance(distance, Unavailable) else distance,
        "within": shares,
        "nonfinite_wrong": wrong / pair.count if pair.count else 0.0,
    }
    if isinstance(error_ratio(pair, 1e-2), Unavailable):
        common["distance"] = 0.0 if not pair.count else None
    if not pair.unequal:
        has_units = candidate.dtype.itemsize in _ULP_LIMITS
        units = 0.0 if has_units else None
        return OutputNumbers(
            worst=0.0,
            root_mean_square=0.0,
            mean_relative=0.0,
            balance=0.0,
            small_wrong=0.0,
            ulp_max=units,
            ulp_mean=units,
            ulp_over=units,
            **common,  # type: ignore[arg-type]
        )
    return _measure_errors(candidate, reference, common)


def _measure_errors(
    candidate: torch.Tensor, reference: torch.Tensor, common: dict[str, object]
) -> OutputNumbers:
    dtype = candidate.dtype
    if dtype.is_complex:
        candidate, reference = torch.view_as_real(candidate), torch.view_as_real(reference)
    ours, theirs = candidate.double().flatten(), reference.double().flatten()
    both = torch.isfinite(ours) & torch.isfinite(theirs)
    if not bool(both.all()):
        ours, theirs = ours[both], theirs[both]
    error, size = ours - theirs, theirs.abs()
    count = max(error.numel(), 1)
    above, below = int((error > 0).sum()), int((error < 0).sum())
    error = error.abs_()
    mean_size = math.sqrt(float((size * size).sum()) / count)
    worst = float((error / (size + mean_size)).nan_to_num_(0.0).max()) if error.numel() else 0.0
    nonzero = size > 0
    relative = error[nonzero] / size[nonzero]
    small = size < _SMALL.get(dtype, 0.0)
    small_count = int(small.sum())
    wrong = int((error[small] > _SMALL_ERROR.get(dtype, 0.0)).sum()) if small_count else 0
    ulp_max, ulp_mean, ulp_over = _ulp_errors(candidate, reference)
    return OutputNumbers(
        worst=worst,
        root_mean_square=math.sqrt(float((error * error).sum()) / count),
        mean_relative=float(relative.mean()) if relative.numel() else 0.0,
        balance=abs(above - below) / count,
        small_wrong=wrong / small_count if small_count else 0.0,
        ulp_max=ulp_max,
        ulp_mean=ulp_mean,
        ulp_over=ulp_over,
        **common,  # type: ignore[arg-type]
    )


_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _ulp_errors(
    candidate: torch.Tensor, reference: torch.Tensor
) -> tuple[float | None, float | None, float | None]:
    """Count the numbers of the dtype that lie between each candidate and its reference."""
    width = candidate.dtype.itemsize
    if not candidate.is_floating_point() or width not in _INTEGERS:
        return None, None, None
    both = torch.isfinite(candidate) & torch.isfinite(reference)
    if not bool(both.any()):
        return 0.0, 0.0, 0.0
    ours, theirs = (_place_in_order(side[both], width) for side in (candidate, reference))
    units = (ours - theirs).double().abs_()
    if width == 8:
        # Differences of far places wrap around; those need no exact count.
        rough = (ours.double() - theirs.double()).abs_()
        units = torch.where(rough < 2.0**52, units, rough)
    over = (units > _ULP_LIMITS[width]).double().mean()
    return float(units.max()), float(units.mean()), float(over)


def _place_in_order(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Return the place of each number among all numbers of its dtype; zeros are one."""
    bits = tensor.contiguous().view(_INTEGERS[width]).long()
    lowest = -(1 << (width * 8 - 1))
    return torch.where(bits < 0, lowest - bits, bits)
