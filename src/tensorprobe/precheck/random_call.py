"""Judge a call that drew random numbers: a dropout by its zeros, others beside draws of the CPU.

what the device drew ─► dropout? judge its share of zeros, and its gradient
                     └► else judge how its numbers are spread, as those that the CPU draws
"""

from __future__ import annotations

import math
from functools import partial

import torch

from tensorprobe.names import ApiCall
from tensorprobe.operations.facts import DROPOUTS
from tensorprobe.precheck.both_sides import BothSides
from tensorprobe.precheck.checked_call import CheckedOutput
from tensorprobe.precheck.draws import (
    dropout_probability,
    judge_distribution,
    judge_dropout,
    judge_dropout_gradient,
    spread_of,
)
from tensorprobe.precheck.picks import on_cpu
from tensorprobe.precheck.side import Side, run_backward

__all__ = ["judge_random"]

# So many draws of the CPU show how far apart they are.
_DRAWS = 5


def judge_random(name: ApiCall, sides: BothSides, candidate: Side) -> list[CheckedOutput]:
    """Judge each result of a call that drew random numbers.

    Args:
        name: its name in parts.
        sides: the call.
        candidate: what the device drew.
    """
    plain = sides.plain
    probability = dropout_probability(name.api_type, plain.args, dict(plain.kwargs))
    given = sides.inputs()
    if name.api_name in DROPOUTS and probability is not None and given:
        return _judge_dropout(name, sides, given[0], probability, candidate)
    return _judge_draws(name, sides, candidate)


def _judge_dropout(
    name: ApiCall, sides: BothSides, given: torch.Tensor, probability: float, candidate: Side
) -> list[CheckedOutput]:
    first = candidate.outputs[0]
    result = first.detach().cpu()
    judgement = judge_dropout(given, result, probability, groups=_groups(name, result))
    outputs = [CheckedOutput("forward.output.0", result, None, judgement)]
    if candidate.leaves and first.requires_grad:
        others = [None] * (len(candidate.outputs) - 1)
        run_backward(candidate, [torch.ones_like(first), *others], sides.device)
        gradient = on_cpu(candidate.gradients[min(candidate.gradients)])
        judgement = judge_dropout_gradient(given, result, gradient)
        outputs.append(CheckedOutput("backward.output.0", gradient, None, judgement))
    return outputs


def _judge_draws(name: ApiCall, sides: BothSides, candidate: Side) -> list[CheckedOutput]:
    """Judge random numbers by their distribution: the CPU draws some of its own."""
    references = [sides.draw_again()]
    found = []
    for index, output in enumerate(candidate.outputs):
        ours, theirs = output.detach().cpu(), references[0].outputs[index].detach()
        judged = partial(judge_distribution, ours, theirs, groups=_groups(name, ours))
        judgement = judged()
        if judgement.verdict == "error" and ours.shape == theirs.shape:
            while len(references) < _DRAWS:
                references.append(sides.draw_again())
            draws = [side.outputs[index].detach() for side in references]
            judgement = judged(spread=spread_of(draws))
        found.append(CheckedOutput(f"forward.output.{index}", ours, theirs, judgement))
    return found


def _groups(name: ApiCall, result: torch.Tensor) -> int | None:
    """Return how many channels there are, if whole ones are drawn."""
    api_name = name.api_name.rstrip("_")
    is_by_channel = "feature" in api_name or api_name.endswith(("1d", "2d", "3d"))
    return max(1, math.prod(result.shape[:2])) if is_by_channel else None
