"""How far one result may be from the precise one: the roundings of its type, and what it sums."""

from __future__ import annotations

import math

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.limit import Limit, Term

__all__ = [
    "is_half",
    "limit_of_drift",
    "limit_of_noise",
    "limit_of_own_sum",
    "limit_of_result",
]


def is_half(dtype: torch.dtype) -> bool:
    """Whether kernels of a dtype keep their sums in float32."""
    return dtype in (torch.float16, torch.bfloat16)


def limit_of_result(dtype: torch.dtype, length: int, typical: float) -> Limit:
    """Return what the distance of a result may be: some roundings, and the random walk of a sum.

    Below the smallest normal number of the dtype a rounding error no longer shrinks with the
    number: it is half of the smallest step.

    Args:
        dtype: what it was computed in.
        length: how many numbers were added up for one element.
        typical: the root mean square of its elements.
    """
    unit = roundoff_of(dtype)
    limits = torch.finfo(dtype)
    if 0 < typical < limits.smallest_normal:
        step = limits.smallest_normal * limits.eps / 2
        coarse = max(unit, min(step / typical, tolerances.COARSEST))
        most = tolerances.ROUNDINGS_FLOAT16 if not is_half(dtype) else _roundings(dtype)
        return Limit((Term(coarse, "roundings to steps that no longer shrink", most),))
    walk = math.sqrt(max(length, 1)) * (roundoff_of(torch.float32) if is_half(dtype) else unit)
    limit = Limit(
        (
            Term(unit, f"roundings to {dtype}", _roundings(dtype)),
            Term(walk, f"the sum of {length} numbers", tolerances.RESULT_SUM_SLACK),
        )
    )
    if is_half(dtype):
        return limit
    return limit.at_most(max(tolerances.WIDEST, unit), "no sound kernel is further off")


def limit_of_own_sum(dtype: torch.dtype, length: int, limit: float) -> Limit:
    """Return the limit of a result whose sums were rounded to a half after each addition."""
    walk = min(tolerances.OWN_SUM * math.sqrt(length), tolerances.MOST_OWN_SUM)
    return Limit(
        (
            Term(limit, "the tolerance of the result"),
            Term(roundoff_of(dtype), f"the sum of {length} numbers, kept in {dtype}", walk),
        )
    )


def limit_of_noise(dtype: torch.dtype) -> float:
    """Return how many times as far as runs with rounding noise a result may be off."""
    return {
        torch.float16: tolerances.NOISE_FLOAT16,
        torch.bfloat16: tolerances.NOISE_BFLOAT16,
    }.get(dtype, tolerances.NOISE_LONG)


def limit_of_drift(dtype: torch.dtype) -> float:
    """Return by what share a whole result may be larger or smaller without a reason."""
    roundings = {
        torch.float16: tolerances.DRIFT_FLOAT16,
        torch.bfloat16: tolerances.DRIFT_BFLOAT16,
    }.get(dtype, tolerances.DRIFT_LONG)
    return roundings * roundoff_of(dtype)


def _roundings(dtype: torch.dtype) -> float:
    return {
        torch.float16: tolerances.ROUNDINGS_FLOAT16,
        torch.bfloat16: tolerances.ROUNDINGS_BFLOAT16,
    }.get(dtype, tolerances.ROUNDINGS_LONG)
