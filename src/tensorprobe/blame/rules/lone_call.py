"""A call that only one of the runs makes, where what follows it starts from other values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorprobe.blame.causes import Cause, common_factor
from tensorprobe.blame.context import Context
from tensorprobe.blame.lone_calls import Consequences, find_follower
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence
from tensorprobe.pairing.call_pairs import stretch_around
from tensorprobe.records import TensorValue, flat_tensors, results_of
from tensorprobe.rounding.distance import Distance, is_nonfinite
from tensorprobe.store import RankDump

__all__ = ["LoneCall", "find_lone_call"]


def find_lone_call(call: CallInContext) -> LoneCall | None:
    """Suspect a call that only one run makes where that has consequences."""
    follower = follower_of(call)
    if follower is None:
        return None
    pair = call.pair
    return LoneCall(
        call=pair.name,
        position=pair.position,
        phase=pair.phase,
        value_path="",
        times=math.inf,
        follower=follower,
        consequences=call.context.consequences,
        is_extra=pair.candidate is not None,
    )


def follower_of(call: CallInContext) -> str | None:
    """Return the first value behind a lone call that differs; None where the call does not matter.

    Gradients follow their forward calls, and of a kind of calls that one run did not record at all
    nothing is to be said.
    """
    context, pair = call.context, call.pair
    is_told = context.consequences != "none" and pair.name.startswith("Module.") in context.kinds
    if not is_told or pair.phase == "backward":
        return None
    usual = context.walk.typical_at[pair.position]
    unexplained = context.walk.unexplained.keys()
    return find_follower(pair, context.pairs, context.agreements, usual, unexplained)


@dataclass(frozen=True, slots=True)
class LoneCall(Evidence):
    """A call that only one run makes.

    Attributes:
        follower: the first value behind it that differs, with its call.
        consequences: where that matters: at the runs' ends, or only inside.
        is_extra: whether it is the candidate that makes it.
    """

    follower: str
    consequences: Consequences
    is_extra: bool

    basis = "sequence"
    told_by = "the order of the calls"
    tells_result = False

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return "likely"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        where = "candidate" if self.is_extra else "reference"
        shown = f"what follows starts from other values, first {self.follower}"
        if self.consequences == "inside":
            shown += "; the runs end in the same results all the same"
        return Cause(
            "extra call" if self.is_extra else "missing call",
            f"only the {where} makes {self._name_stretch(context)}"
            f"{_describe_alone(self, context)}; {shown}",
            "compare the code of both runs at this place",
        )

    def nothing_to_prove(self, cause: Cause) -> str:
        """Return why no replay can show the fault."""
        return "nothing to replay: only one run makes this call, which its record shows"

    def may_be_victim(self, context: Context) -> bool:
        """Whether it may be what the error of an earlier suspect leads to: it was told by that."""
        return True

    def shows_again(self, other: Evidence, context: Context) -> bool:
        """Whether a copy only shows what this call has changed in place."""
        if other.measure != "exact":
            return False
        last = next(p.position for p in context.pairs if self.follower.startswith(f"{p.name}."))
        return self.position < other.position <= last

    def part(self, context: Context) -> RankDump:
        """Return the run that makes the call."""
        return (context.candidate if self.is_extra else context.reference).part

    def input_distances(self, context: Context) -> Sequence[Distance]:
        """Return nothing: another call may have the name in the other run."""
        return ()

    output_distances = input_distances

    def results(self, context: Context) -> Iterable[TensorValue | None]:
        """Return what the calls around give: in place, say, it may be recorded of others, too."""
        return results_around(self.position, context)

    def _name_stretch(self, context: Context) -> str:
        """Name the call with those that it stands together with."""
        is_module = self.call.startswith("Module.")
        stretch = [
            pair
            for pair in stretch_around(self.position, context.pairs)
            # The modules around calls are no calls more.
            if pair.name.startswith("Module.") == is_module and pair.phase == self.phase
        ]
        more = [
            pair.name
            for pair in stretch
            if (pair.candidate is not None) == self.is_extra and pair.position > self.position
        ]
        others = [p.name for p in stretch if (p.candidate is not None) != self.is_extra]
        text = "this call"
        if more:
            text += (
                " and the one behind it" if len(more) == 1 else f" and the {len(more)} behind it"
            )
            text += f", {'up to ' if len(more) > 1 else ''}{more[-1]}"
        if others:
            other = "reference" if self.is_extra else "candidate"
            text += f" (in its place the {other} makes {others[0]}"
            text += f" and {len(others) - 1} more)" if len(others) > 1 else ")"
        return text


def results_around(position: int, context: Context) -> Iterable[TensorValue | None]:
    """Yield what the calls give that stand together with a lone one."""
    for pair in stretch_around(position, context.pairs):
        call = pair.candidate or pair.reference
        if call is not None:
            yield from results_of(call)


def _describe_alone(found: LoneCall, context: Context) -> str:
    """Say what a call does to what it is given, where that is plain."""
    pair = context.pairs[found.position]
    call = pair.candidate or pair.reference
    assert call is not None
    given = [value for value in flat_tensors(call.inputs) if value is not None]
    made = [value for value in results_of(call) if value is not None]
    if not given or not made:
        return ""
    if is_nonfinite(made[0]) and not any(is_nonfinite(value) for value in given):
        return ", which makes NaN or infinities"
    same_shape = made[0].shape == given[0].shape
    factor = common_factor(made[0], given[0]) if same_shape else None
    return "" if factor is None else f", which multiplies what it is given by {factor:.6g}"
