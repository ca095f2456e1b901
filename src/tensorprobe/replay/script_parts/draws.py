"""Judge calls that draw random numbers, which differ each time, by what must hold of any draw.

Dropout: about a share p of the elements is zero, the others are the input over 1 - p, and gradients
are zero where results are. Everything else: the numbers are spread as those that the CPU draws are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from tensorprobe.rounding import tolerances

__all__ = [
    "Drawn",
    "judge_distribution",
    "judge_dropout",
    "judge_dropout_gradient",
    "spread_of",
]


class Drawn(NamedTuple):
    """What is said of numbers that a call drew.

    Attributes:
        verdict: pass, error or SKIP.
        message: why.
        excess: how many times what is allowed was exceeded; 0 when it was not.
        limit: how far apart distributions may be.
    """

    verdict: Literal["pass", "error", "SKIP"]
    message: str
    excess: float = 0.0
    limit: float | None = None


def judge_dropout(
    given: torch.Tensor, result: torch.Tensor, probability: float, *, groups: int | None = None
) -> Drawn:
    """Judge the result of a dropout by its share of zeros and the size of what is left.

    Args:
        given: the input, on the CPU.
        result: the output of the same shape, on the CPU.
        probability: the share that should be zero.
        groups: how many parts fall together, where whole channels do; None for single elements.
    """
    if given.shape != result.shape:
        return Drawn(
            "error", f"the shape is {list(result.shape)}, wanted {list(given.shape)}", excess=1e9
        )
    dtype = result.dtype
    given, result = given.double(), result.double()
    living = given != 0
    count = int(living.sum())
    if not count:
        return Drawn("SKIP", "the input is all zero, so no share of zeros can be told")
    share = float((result[living] == 0).double().mean())
    trials = count if groups is None else min(groups, count)
    room = (
        tolerances.DROPOUT_DEVIATIONS * math.sqrt(probability * (1 - probability) / trials)
        + 1 / trials
    )
    if abs(share - probability) > room:
        return Drawn(
            "error",
            f"the share of zeros is {share:.4g}, p is {probability:.4g} and {trials} draws allow "
            f"{room:.3g}",
            excess=abs(share - probability) / room,
        )
    kept = living & (result != 0)
    if bool(kept.any()) and probability < 1:
        expected = given[kept] / (1 - probability)
        # Of the smallest numbers of a dtype a step is a large part.
        step = float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
        beyond = ((result[kept] - expected).abs() - step).clamp_(min=0)
        error = float(beyond.div_(expected.abs()).max())
        limit = tolerances.DROPOUT_ROUNDINGS * torch.finfo(dtype).eps / 2
        if error > limit:
            return Drawn(
                "error",
                f"what was kept is off by {error:.3g} from the input over 1 - p, over {limit:.3g}",
                excess=error / limit,
            )
    return Drawn("pass", f"judged by its share of zeros: {share:.4g} of {probability:.4g}")


def judge_dropout_gradient(
    given: torch.Tensor, result: torch.Tensor, gradient: torch.Tensor | None
) -> Drawn:
    """Judge a dropout's gradient for an output gradient of ones: zero exactly where results are."""
    if gradient is None:
        return Drawn("error", "there is no gradient", excess=1e9)
    wrong = int(((gradient == 0) != (result == 0))[given != 0].sum())
    if wrong:
        return Drawn("error", f"{wrong} gradients are not zero where results are", excess=1e9)
    return Drawn("pass", "zero where the result is")


def judge_distribution(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    *,
    groups: int | None = None,
    spread: float = 0.0,
) -> Drawn:
    """Judge random numbers by how they are spread, against others of the same call.

    Args:
        candidate: what the device drew, on the CPU.
        reference: what the CPU drew.
        groups: how many parts are drawn together, where whole channels are.
        spread: how far apart draws of the CPU are; elements that depend on each other, such as
            those of a row that is made to add up to 1, are further apart than so many draws.
    """
    if candidate.shape != reference.shape or candidate.dtype != reference.dtype:
        return Drawn(
            "error",
            f"the device gave {candidate.dtype} {list(candidate.shape)}, the CPU "
            f"{reference.dtype} {list(reference.shape)}",
            excess=1e9,
        )
    count = candidate.numel() * (2 if candidate.is_complex() else 1)
    if not count:
        return Drawn("pass", "no elements")
    gap = _gap(candidate, reference)
    draws = count if groups is None else min(groups, count)
    limit = max(tolerances.DRAWS_APART * math.sqrt(2 / draws), tolerances.DRAWS_SPREADS * spread)
    text = f"judged by its distribution: the largest gap is {gap:.3g}, {draws} draws allow"
    if gap > limit:
        return Drawn("error", f"{text} {limit:.3g}", excess=gap / limit, limit=limit)
    return Drawn("pass", f"{text} {min(limit, 1.0):.3g}")


def spread_of(draws: Sequence[torch.Tensor]) -> float:
    """Return how far apart those two of some draws are that are furthest apart."""
    return max(_gap(*pair) for pair in itertools.combinations(draws, 2))


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of the shares below any number, of two draws of one shape."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    ours, theirs = (side.double().flatten().sort().values for side in (one, other))
    values = torch.cat((ours, theirs))
    below = [torch.searchsorted(side, values, right=True) / len(side) for side in (ours, theirs)]
    return float((below[0] - below[1]).abs().max())
