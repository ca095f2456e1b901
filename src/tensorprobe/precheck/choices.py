"""Judge which places a call chose: among equal values any is right, and `topk` may mix them up.

topk, sort, argmax ─► Choice ─► both sides in one order ─► places that differ: equal values there?
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tensorprobe.precheck.checked_call import CheckedOutput
from tensorprobe.precheck.judge import Verdict
from tensorprobe.precheck.picks import Pick, pick_output
from tensorprobe.replay.both_sides import BothSides
from tensorprobe.replay.chosen_places import (
    find_axis,
    hold_equal_values,
    is_unordered,
    place_result,
)
from tensorprobe.replay.side import Side

__all__ = ["Choice"]


class Choice:
    """What a call chose from its first argument.

    Args:
        sides: the call.

    Attributes:
        result: which of its results are places that it chose; None if none is.
        chooses: its name and the dimension that they count along, if it chose some.
    """

    def __init__(self, sides: BothSides) -> None:
        plain = sides.plain
        call = sides.api_name, plain.args, plain.kwargs
        self._sides = sides
        self.result = place_result(*call)
        self._is_unordered = is_unordered(*call)
        self._axis = find_axis(*call) if self.result is not None else None
        self.chooses = None if self.result is None else (sides.api_name, self._axis)

    def in_order(self, side: Side) -> Side:
        """Return a side with what it chose in the order of the values, if it came in any."""
        if not self._is_unordered or self._axis is None:
            return side
        values, places = (output.detach().cpu() for output in side.outputs)
        order = values.argsort(dim=self._axis, stable=True)
        chosen = [tensor.gather(self._axis, order) for tensor in (values, places)]
        return replace(side, outputs=chosen)

    def pick_output(self, index: int) -> Pick:
        """Return what picks a result of any side, in the order of `in_order`."""
        pick = pick_output(index)
        return (lambda side: pick(self.in_order(side))) if self._is_unordered else pick

    def is_another(self, candidate: Side, reference: Side) -> bool:
        """Whether the two sides chose different places, to which their gradients go."""
        if self.result is None or self.result >= len(reference.outputs):
            return False
        ours, theirs = candidate.outputs[self.result].cpu(), reference.outputs[self.result]
        return not torch.equal(ours, theirs)

    def among_equals(self, output: CheckedOutput) -> CheckedOutput:
        """Let places that are not the reference's pass if equal values stand there, and only then.

        A choice is made of the very numbers that were given, so that no noise excuses another one.
        """
        ours, theirs = output.candidate, output.reference
        if output.judgement.verdict not in ("error", "warning") or ours is None or theirs is None:
            return output
        given = self._sides.inputs()[0]
        is_right = hold_equal_values(self._sides.api_name, given, ours, theirs, self._axis)
        verdict: Verdict = "warning" if is_right else "error"
        reason = "equal values stand there, and any is right" if is_right else "others stand there"
        first = output.judgement.message.partition(";")[0]
        judgement = replace(
            output.judgement,
            verdict=verdict,
            message=f"{first}; {reason}",
            excess=1.0 if is_right else math.inf,
        )
        return replace(output, judgement=judgement)
