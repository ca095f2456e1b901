"""How finely the tensors of a call were recorded: statistics, bits, and what underflowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorprobe.dtypes import DTYPES, roundoff_of, significant_bits
from tensorprobe.records import TensorValue
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import (
    Distance,
    is_float,
    largest_element,
    statistics_distances,
)
from tensorprobe.rounding.gain import root_mean_square

__all__ = [
    "agree_as_recorded",
    "count_rows",
    "fewest_bits",
    "resolutions",
    "summing_error",
    "underflow",
]


def count_rows(distance: Distance) -> int:
    """Return how many rows a tensor has: what shares no rounding."""
    shape = distance.candidate.shape
    return max(1, math.prod(shape) // shape[-1]) if shape and shape[-1] else 1


def resolutions(output: Distance) -> tuple[float, float]:
    """Return how finely mean and norm were recorded, relative as their distances are.

    Some tools round the statistics of a tensor to its own type.
    """
    unit = roundoff_of(output.candidate.dtype)
    size = largest_element(output.reference)
    means, norms = (
        [float(v) for v in (getattr(output.candidate, key), getattr(output.reference, key)) if v]
        for key in ("mean", "norm")
    )
    mean = max((abs(item) for item in means), default=0.0)
    fine = tolerances.RECORDED_ROUNDOFF
    of_mean = 2 * unit if all(_fits(item, unit) for item in means) else fine
    of_norm = 2 * unit if all(_fits(item, unit) for item in norms) else fine
    of_norm += fine + summing_error(output)
    return (of_mean * mean / size if size else 0.0) + fine, of_norm


def agree_as_recorded(mine: TensorValue, other: TensorValue, *, tools_differ: bool) -> bool:
    """Whether two tensors of whole numbers agree in all that both tools recorded of them.

    One tool has their mean and norm exactly, another in float32, a third not at all. What one tool
    records of the same numbers is the same, so there nothing is allowed.
    """
    if is_float(mine) or is_float(other) or mine.dtype != other.dtype or mine.max is None:
        return False
    if not tools_differ and (mine.mean is None) == (other.mean is None):
        return False
    both = (_with_averages_of(mine, other), _with_averages_of(other, mine))
    extremes, averages = statistics_distances(*both)
    return extremes == 0 and max(averages) <= tolerances.RECORDED_ROUNDOFF + _summing_error(mine)


def _with_averages_of(mine: TensorValue, other: TensorValue) -> TensorValue:
    return replace(
        mine,
        mean=other.mean if mine.mean is None else mine.mean,
        norm=other.norm if mine.norm is None else mine.norm,
    )


def summing_error(distance: Distance) -> float:
    """Return how far off a recorded norm is: tools sum it in float32."""
    return _summing_error(distance.candidate)


def _summing_error(value: TensorValue) -> float:
    terms = math.sqrt(math.prod(value.shape))
    half_a_unit = roundoff_of("torch.float32") / 2
    return min(terms, tolerances.LONGEST_NORM_SUM) * half_a_unit


def _fits(number: float, unit: float) -> bool:
    """Whether a number is one of a type with this unit roundoff."""
    fraction, _ = math.frexp(number)
    return (fraction / unit).is_integer()


def fewest_bits(output: Distance, given: Sequence[Distance], saved: Sequence[Distance]) -> int:
    """Return the significant bits that a result may have been rounded to on its way.

    Under autocast a result of float32 may be one of 16 bits that was cast.
    """
    dtypes = [output.candidate.dtype, output.reference.dtype]
    for distance in (*given, *saved):
        if is_float(distance.candidate):
            dtypes += [distance.candidate.dtype, distance.reference.dtype]
    return min(map(significant_bits, dtypes))


def underflow(distance: Distance) -> float:
    """Return the roundoff of numbers too small to be normal ones, relative to their usual size.

    Gradients of float16 often are, without a scale.
    """
    if "torch.float16" not in (distance.candidate.dtype, distance.reference.dtype):
        return 0.0
    size = root_mean_square(distance)
    return min(1.0, DTYPES["torch.float16"].smallest / 2 / size) if size else 0.0
