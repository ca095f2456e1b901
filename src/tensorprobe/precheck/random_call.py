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
from tensorprobe.precheck.checked_call import CheckedOutput, RandomDraw
from tensorprobe.precheck.judge import Judgement
from tensorprobe.precheck.picks import on_cpu
from tensorprobe.replay.both_sides import BothSides
from tensorprobe.replay.script_parts.draws import (
    Drawn,
    judge_distribution,
    judge_dropout,
    judge_dropout_gradient,
    spread_of,
)
from tensorprobe.replay.side import Side, run_backward

__all__ = ["dropout_probability", "judge_random"]

# So many draws of the CPU show how far apart they are.
_DRAWS = 5


def judge_random(
    name: ApiCall, sides: BothSides, candidate: Side
) -> tuple[list[CheckedOutput], RandomDraw]:
    """Judge each result of a call that drew random numbers, and say how it drew them.

    Args:
        name: its name in parts.
        sides: the call.
        candidate: what the device drew.
    """
    plain, seed = sides.plain, sides.seed
    probability = dropout_probability(name.api_type, plain.args, dict(plain.kwargs))
    given = sides.inputs()
    groups = _groups(name, candidate.outputs[0])
    if name.api_name in DROPOUTS and probability is not None and given:
        found = _judge_dropout(sides, given[0], probability, groups, candidate)
        return found, RandomDraw(seed, probability, groups)
    return _judge_draws(name, sides, candidate), RandomDraw(seed, None, groups)


def dropout_probability(
    api_type: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> float | None:
    """Return the p that a call was given; None where it cannot be told."""
    given = kwargs.get("p", args[1] if len(args) > 1 else None)
    if given is None and api_type == "Functional":
        return 0.5
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return float(given) if is_number else None  # type: ignore[arg-type]


def _judge_dropout(
    sides: BothSides,
    given: torch.Tensor,
    probability: float,
    groups: int | None,
    candidate: Side,
) -> list[CheckedOutput]:
    first = candidate.outputs[0]
    result = first.detach().cpu()
    judgement = _judgement(judge_dropout(given, result, probability, groups=groups))
    outputs = [CheckedOutput("forward.output.0", result, None, judgement)]
    if candidate.leaves and first.requires_grad:
        others = [None] * (len(candidate.outputs) - 1)
        run_backward(candidate, [torch.ones_like(first), *others], sides.device)
        gradient = on_cpu(candidate.gradients[min(candidate.gradients)])
        judgement = _judgement(judge_dropout_gradient(given, result, gradient))
        outputs.append(CheckedOutput("backward.output.0", gradient, None, judgement))
    return outputs


def _judge_draws(name: ApiCall, sides: BothSides, candidate: Side) -> list[CheckedOutput]:
    """Judge random numbers by their distribution: the CPU draws some of its own."""
    references = [sides.draw_again()]
    found = []
    for index, output in enumerate(candidate.outputs):
        ours, theirs = output.detach().cpu(), references[0].outputs[index].detach()
        judged = partial(judge_distribution, ours, theirs, groups=_groups(name, ours))
        drawn = judged()
        if drawn.verdict == "error" and ours.shape == theirs.shape:
            while len(references) < _DRAWS:
                references.append(sides.draw_again())
            draws = [side.outputs[index].detach() for side in references]
            drawn = judged(spread=spread_of(draws))
        found.append(CheckedOutput(f"forward.output.{index}", ours, theirs, _judgement(drawn)))
    return found


def _judgement(drawn: Drawn) -> Judgement:
    return Judgement(drawn.verdict, drawn.message, limit=drawn.limit, excess=drawn.excess)


def _groups(name: ApiCall, result: torch.Tensor) -> int | None:
    """Return how many channels there are, if whole ones are drawn."""
    api_name = name.api_name.rstrip("_")
    is_by_channel = "feature" in api_name or api_name.endswith(("1d", "2d", "3d"))
    return max(1, math.prod(result.shape[:2])) if is_by_channel else None
