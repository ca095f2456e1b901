"""The numbers about one output of a checked call: candidate against the rounded reference.

The reference is rounded to the candidate's dtype first: that is the best the dtype can hold, and a
perfect candidate has no error at all.

    candidate, reference ─► pair: one pass ─► no element differs: done
                                         └► errors: a second pass, held against the mean size

The kernel rounds while it reads. What it does not measure, complex numbers and float64, is rounded
and measured piece by piece with torch, which also does all where there is no kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tensorprobe.metrics.pair import (
    PairNumbers,
    Unavailable,
    cosine,
    error_ratio,
    measure_pair,
    relative_distance,
    rounds_reference,
)
from tensorprobe.metrics.pair_errors import ErrorLimits, measure_errors, measures_errors
from tensorprobe.replay.precision import round_to
from tensorprobe.summary.host import to_host
from tensorprobe.tensor_data import TensorData

__all__ = ["FirstPass", "OutputNumbers", "measure_first", "measure_output"]

# numpy has no more of them before its second version.
_MOST_DIMENSIONS = 32
# Errors of more units in the last place than this are counted, by the width of the dtype.
_ULP_LIMITS = {2: 1, 4: 32, 8: 32}
# Below this a reference value counts as small, and an absolute error of more than that as wrong.
_SMALL = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-10, torch.float32: 2.0**-20}
_SMALL_ERROR = {torch.float16: 2.0**-16, torch.bfloat16: 2.0**-16, torch.float32: 2.0**-30}

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Small enough for every step over a piece to stay in the cache.
_PIECE = 1 << 14


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
        small_wrong: share of the elements with a small reference whose absolute error is too large.
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
        reference: the reference in the same shape, in any precision.

    >>> numbers = measure_output(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    >>> numbers.pair.max_abs_error, numbers.within[0]
    (0.5, 0.5)
    """
    first = measure_first(candidate, reference)
    pair, ours, theirs = first.pair, first.candidate, first.reference
    candidate, reference = first.flat
    threads = torch.get_num_threads()
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
    count = max(pair.count - max(pair.candidate_nonfinite, pair.reference_nonfinite), 1)
    mean_size = math.sqrt(pair.reference_squares / count) * pair.scales.reference
    common["root_mean_square"] = math.sqrt(pair.difference_squares / count) * pair.scales.difference
    dtype = candidate.dtype
    if not (mean_size and measures_errors(ours.dtype, theirs.dtype)):
        return _measure_with_torch(candidate, round_to(reference, dtype), mean_size, common)
    limits = ErrorLimits(mean_size, _SMALL[dtype], _SMALL_ERROR[dtype], _ULP_LIMITS[dtype.itemsize])
    found = measure_errors(ours, theirs, limits, threads=threads)
    return OutputNumbers(
        worst=found.worst,
        mean_relative=found.relative / max(found.nonzero, 1),
        balance=abs(found.lean) / max(found.pairs, 1),
        small_wrong=found.small_wrong / max(found.small, 1),
        ulp_max=float(found.places_max),
        ulp_mean=found.places / max(found.pairs, 1),
        ulp_over=found.places_over / max(found.pairs, 1),
        **common,  # type: ignore[arg-type]
    )


def _measure_with_torch(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    mean_size: float,
    common: dict[str, object],
) -> OutputNumbers:
    dtype, pair = candidate.dtype, common["pair"]
    assert isinstance(pair, PairNumbers)
    if dtype.is_complex:
        candidate, reference = torch.view_as_real(candidate), torch.view_as_real(reference)
    is_finite = not (pair.candidate_nonfinite or pair.reference_nonfinite)
    sums = _Sums(candidate.dtype, mean_size)
    left, right = candidate.reshape(-1), reference.reshape(-1)
    for start in range(0, left.numel(), _PIECE):
        ours, theirs = left[start : start + _PIECE], right[start : start + _PIECE]
        if not is_finite:
            both = torch.isfinite(ours) & torch.isfinite(theirs)
            ours, theirs = ours[both], theirs[both]
        if ours.numel():
            sums.add(ours, theirs)
    return OutputNumbers(
        worst=sums.worst,
        mean_relative=sums.relative / max(sums.nonzero, 1),
        balance=abs(sums.lean) / max(sums.count, 1),
        small_wrong=sums.small_wrong / max(sums.small, 1),
        ulp_max=None if sums.width is None else sums.ulp_max,
        ulp_mean=None if sums.width is None else sums.ulps / max(sums.count, 1),
        ulp_over=None if sums.width is None else sums.ulps_over / max(sums.count, 1),
        **common,  # type: ignore[arg-type]
    )


class FirstPass(NamedTuple):
    """What one pass over both sides told, and what it looked at.

    Attributes:
        pair: the numbers.
        candidate: the device's data.
        reference: the reference's; rounded to the device's dtype, or rounded while it is measured.
        flat: both sides as tensors, in a shape that numpy takes.
    """

    pair: PairNumbers
    candidate: TensorData
    reference: TensorData
    flat: tuple[torch.Tensor, torch.Tensor]


def measure_first(candidate: torch.Tensor, reference: torch.Tensor) -> FirstPass:
    """Measure what one pass over both sides of an output tells.

    Args:
        candidate: the device's result, on the CPU.
        reference: the reference in the same shape, in any precision; rounded to the device's.
    """
    if candidate.dim() > _MOST_DIMENSIONS or not candidate.numel():
        # Beside a size of 0 the others may be larger than numpy takes.
        candidate, reference = candidate.reshape(-1), reference.reshape(-1)
    ours, theirs = to_host(candidate), to_host(reference)
    rounds = candidate.dtype != reference.dtype
    if rounds and not rounds_reference(ours.dtype, theirs.dtype):
        reference, rounds = round_to(reference, candidate.dtype), False
        theirs = to_host(reference)
    pair = measure_pair(ours, theirs, threads=torch.get_num_threads(), rounds=rounds)
    return FirstPass(pair, ours, theirs, (candidate, reference))


class _Sums:
    """What adds up over the pieces of a pair."""

    def __init__(self, dtype: torch.dtype, mean_size: float) -> None:
        is_measured = dtype.is_floating_point and dtype.itemsize in _INTEGERS
        self.width = dtype.itemsize if is_measured else None
        self._mean_size = mean_size
        self._small, self._small_error = _SMALL.get(dtype, 0.0), _SMALL_ERROR.get(dtype, 0.0)
        self.count = self.lean = self.nonzero = self.small = self.small_wrong = 0
        self.worst = self.relative = self.ulp_max = self.ulps = 0.0
        self.ulps_over = 0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add one piece of finite numbers."""
        if self.width is not None:
            units = _units_between(ours, theirs, self.width)
            self.ulp_max = max(self.ulp_max, float(units.max()))
            self.ulps += float(units.sum())
            self.ulps_over += int((units > _ULP_LIMITS[self.width]).sum())
        # Copies: of float64 the very tensors would be changed.
        size = theirs.to(torch.float64, copy=True)
        error = ours.to(torch.float64, copy=True).sub_(size)
        size.abs_()
        count = error.numel()
        self.count += count
        self.lean += int(error.sign().sum())
        error.abs_()
        if self._mean_size:
            self.worst = max(self.worst, float((error / (size + self._mean_size)).max()))
        elif bool(error.any()):
            self.worst = math.inf
        smallest = float(size.min())
        if smallest < self._small:
            small = size < self._small
            self.small += int(small.sum())
            self.small_wrong += int((small & (error > self._small_error)).sum())
        relative = error.div_(size)
        if not smallest:
            # Nothing is relative to 0.
            nonzero = size > 0
            count = int(nonzero.sum())
            relative = torch.where(nonzero, relative, 0.0)
        self.nonzero += count
        self.relative += float(relative.sum())


def _units_between(ours: torch.Tensor, theirs: torch.Tensor, width: int) -> torch.Tensor:
    """Count the numbers of the dtype that lie between each candidate and its reference."""
    first, second = _place_in_order(ours, width), _place_in_order(theirs, width)
    if width < 8:
        return first.double().sub_(second).abs_()
    # Differences of far places wrap around; those need no exact count.
    rough = (first.double() - second.double()).abs_()
    return torch.where(rough < 2.0**52, (first - second).double().abs_(), rough)


def _place_in_order(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Return the place of each number among all numbers of its dtype; zeros are one."""
    bits = tensor.view(_INTEGERS[width])
    last = width * 8 - 1
    # -1 where the number is negative: there the other bits count backwards.
    sign = bits >> last
    return (bits ^ (sign & ((1 << last) - 1))) - sign
