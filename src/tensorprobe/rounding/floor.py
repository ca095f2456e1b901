"""How much rounding explains of each element: the error analysis that tolerances come from.

Notation: `u` is the unit roundoff of a type, 2**-p for p significant bits. A result that is rounded
to nearest is off by at most half a unit in its last place (`half_ulp`), and by that over sqrt(3) in
the mean. A kernel that accumulates n terms one after the other in a type of roundoff u is off by up
to about u * sqrt(n) times the size of what it sums, if its rounding errors are independent (the
usual case, Higham & Mary 2019); the worst case, n instead of sqrt(n), needs errors that conspire.

What "the size of what it sums" is depends on the values, so it is not guessed but measured: the
call is replayed with every input shaken by one rounding of relative size u. The spread of the
results (`spread`, one standard deviation for each element) is what one rounding of each input costs
here, cancellation and conditioning included.

    floor of an element = half_ulp(result)                            the result is rounded
                        + 2 * (1 + sqrt(n)) * spread(u_accumulate)    sums, in the least lucky order
                        + 4 * spread(u_work)                          steps of fewer bits
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tensorprobe.dtypes import TF32_ROUNDOFF, is_rounded, roundoff_of, significant_bits
from tensorprobe.operations.facts import CONVOLUTIONS, MATRIX, ROUNDED_ONCE
from tensorprobe.rounding import tolerances

__all__ = [
    "Floor",
    "accumulation_roundoff",
    "half_ulp",
    "rounds_once",
    "working_roundoffs",
]

# Precision "medium" rounds operands of matrix products further than TF32 does.
"""The roundoff of operands that a matrix unit cuts down to TF32."""
_MEDIUM = roundoff_of("torch.bfloat16")


def accumulation_roundoff(dtype: torch.dtype) -> float:
    """Return u of the type in which sums of this type are kept: float32 for all shorter ones."""
    return min(roundoff_of(dtype), roundoff_of(torch.float32))


def working_roundoffs(operation: str, phase: str, dtype: torch.dtype) -> tuple[float, ...]:
    """Return the roundoffs that an operation may work in, the one to expect first.

    A sound kernel of a short type computes in float32. What is made of several steps (softmax, a
    norm, a backward pass with saved results) may round each to its own type. Matrix products of
    float32 may run on operands of fewer bits, if the whole run does so.
    """
    own, accumulate = roundoff_of(dtype), accumulation_roundoff(dtype)
    if rounds_once(operation, phase):
        if operation in MATRIX and dtype == torch.float32:
            return (accumulate, TF32_ROUNDOFF, _MEDIUM)
        return (accumulate,) if own == accumulate else (accumulate, own)
    if operation in MATRIX and dtype == torch.float32:
        return (own, TF32_ROUNDOFF, _MEDIUM)
    return (own,)


def rounds_once(operation: str, phase: str) -> bool:
    """Whether every sound kernel of an operation rounds each result once, at the end.

    Of backward passes only those of plain matrix products do: the others work with results that
    were rounded when they were saved, and sum over what was broadcast, or over the windows of a
    convolution, in a step of its own.
    """
    if phase == "backward" and operation not in MATRIX - CONVOLUTIONS:
        return False
    return operation in ROUNDED_ONCE


def half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return half the unit in the last place of float64 values that are rounded to a type.

    >>> half_ulp(torch.tensor([1.0, 3.0], dtype=torch.float64), torch.bfloat16).tolist()
    [0.00390625, 0.0078125]
    """
    if not is_rounded(dtype):
        # What a file says of a tensor may not be what it holds; nothing is rounded to this.
        dtype = torch.float64
    bits = significant_bits(dtype)
    _, exponent = torch.frexp(values.abs())
    # Below the smallest normal number the spacing stays what it is there.
    _, smallest = math.frexp(torch.finfo(dtype).tiny)
    exponent = torch.where(values == 0, smallest, torch.clamp(exponent, min=smallest))
    return torch.ldexp(torch.ones_like(values), exponent - 1 - bits)


@dataclass(frozen=True, slots=True, eq=False)
class Floor:
    """What rounding may make of one result, element by element.

    Attributes:
        rounding: half a unit in the last place of each element.
        spread: the standard deviation of each element when inputs are shaken by one roundoff of 1.
        background: what small elements inherit from the size of their neighbours, likewise.
        terms: how many terms each element sums.
        accumulate: the roundoff of the sums.
    """

    rounding: torch.Tensor
    spread: torch.Tensor
    background: float
    terms: float
    accumulate: float

    def bound(self, work: float) -> torch.Tensor:
        """Return the largest error that rounding explains when steps are of roundoff `work`."""
        spread = self.spread + self.background
        sums = (1 + math.sqrt(self.terms)) * self.accumulate * spread
        bound = self.rounding + tolerances.SUM_SLACK * sums
        if work > self.accumulate:
            bound = bound + tolerances.SPREADS * work * spread
        return bound

    def typical(self, work: float) -> torch.Tensor:
        """Return the error to expect in the mean, one standard deviation."""
        summed = (1 + math.sqrt(self.terms) / 2) * self.accumulate * self.spread
        worked = work * self.spread if work > self.accumulate else torch.zeros_like(self.spread)
        return torch.sqrt(self.rounding**2 / 3 + summed**2 + worked**2)
