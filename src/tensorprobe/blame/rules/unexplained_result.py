"""A result that is further off than the call's inputs and rounding explain, and no replay proves.

What the call is decides what that looks like: a collective hands on what a rank sent, a random
operation draws, and the others compute something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.call_split import OutputSplit
from tensorprobe.blame.causes import PROOF_ADVICE, Cause, common_factor, read_error
from tensorprobe.blame.context import Context
from tensorprobe.blame.passed_on import is_fed_unseen
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence
from tensorprobe.blame.rules.replayed_error import LOOK_INSIDE, LOOK_OUTSIDE, made_here
from tensorprobe.blame.unreplayed import measure_unreplayed
from tensorprobe.dtypes import roundoff_of
from tensorprobe.operations.facts import RANDOM
from tensorprobe.operations.spelling import operation_of
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import is_nonfinite
from tensorprobe.rounding.explain import Unexplained
from tensorprobe.rounding.limit import Limit

__all__ = ["UnexplainedResult", "find_unexplained_result", "is_cleared"]

_PROVE = "capture this call with task tensor on both sides: a replay can prove it"


def find_unexplained_result(call: CallInContext) -> UnexplainedResult | None:
    """Suspect a call whose result nothing explains, unless a replay has cleared it."""
    unexplained = call.unexplained
    if unexplained is None or is_cleared(call, unexplained):
        return None
    pair = call.pair
    if call.found and is_fed_unseen(pair.name):
        return None
    kind, replayed = UnexplainedResult, None
    if pair.name.startswith("Distributed."):
        kind = OtherReceived
    elif operation_of(pair.name) in RANDOM:
        kind, replayed = OtherDraw, _split_of(call, unexplained)
    return kind(
        call=pair.name,
        position=pair.position,
        phase=pair.phase,
        value_path=unexplained.output.place,
        times=unexplained.times,
        unexplained=unexplained,
        replayed=replayed,
        is_exact=pair.is_exact,
    )


def is_cleared(call: CallInContext, unexplained: Unexplained) -> bool:
    """Whether a replay has shown that a result is what its inputs give."""
    if call.pair.name not in call.context.splits:
        return False
    if operation_of(call.pair.name) in RANDOM:
        # The replay takes over what was dropped; that the runs drop other elements shows outside.
        return unexplained.inherited > 0
    return _split_of(call, unexplained) is not None


def _split_of(call: CallInContext, unexplained: Unexplained) -> OutputSplit | None:
    split = call.context.splits.get(call.pair.name)
    outputs = () if split is None else split.outputs
    return next((o for o in outputs if o.place == unexplained.output.place), None)


@dataclass(frozen=True, slots=True)
class UnexplainedResult(Evidence):
    """A call whose inputs agree better than its result.

    Attributes:
        unexplained: the distances.
        replayed: the numbers of a replay, where there was one that does not decide.
        is_exact: whether the call only moves, picks or compares numbers.
    """

    unexplained: Unexplained
    replayed: OutputSplit | None
    is_exact: bool

    basis = "inputs"
    told_by = "the distances of inputs and outputs, without a replay"

    @property
    def split(self) -> OutputSplit | None:
        """The numbers of a replay, where there was one."""
        return self.replayed

    @property
    def limit(self) -> Limit:
        """How far off the result may be and why."""
        return self.unexplained.limit

    @property
    def made_words(self) -> str:
        """What of its result's distance was made in the call."""
        return f"{'' if self.replayed is None else made_here(self.replayed)}{self.beyond}"

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        if math.isnan(self.unexplained.output.value):
            # Another checksum may be the rounding of another kernel; a copy has none.
            return "likely" if self.is_exact else "possible"
        return "likely" if self.unexplained.times >= tolerances.LIKELY_TIMES else "possible"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like, from its elements where these are there."""
        found = self.unexplained
        seen = measure_unreplayed(
            found.output,
            found.allowed,
            context.candidate,
            context.reference,
            is_exact=self.is_exact,
        )
        if seen is not None:
            return read_error(self.call, seen)
        mine, other = found.output.candidate, found.output.reference
        if mine.shape != other.shape:
            return Cause(
                "computation",
                f"its result has the shape {list(mine.shape)} instead of {list(other.shape)}",
                "capture with task tensor to see the values",
            )
        if is_nonfinite(mine) and not is_nonfinite(other):
            return Cause(
                "non-finite",
                "its result holds NaN or infinities, its inputs do not",
                "capture this call with task tensor to see which elements",
            )
        if self.is_exact:
            return Cause("indices", "it only moves or picks values, yet they are others", _PROVE)
        factor = common_factor(mine, other)
        if factor is not None:
            return Cause("scale", f"all statistics are {factor:.6g} times the reference's", _PROVE)
        if math.isnan(found.output.value):
            return Cause(
                "computation", "its inputs have equal checksums, its result has not", _PROVE
            )
        return Cause(
            "computation",
            f"its result is off by {found.output.value:.1e} of its size; its inputs and rounding "
            f"explain {found.allowed:.1e} ({found.limit.main_term.reason})",
            _PROVE,
        )

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next: whoever has captured something is not told to capture it."""
        is_module = self.call.startswith("Module.")
        if is_module and context.has_calls_of_functions:
            return LOOK_OUTSIDE
        wants = self._missing_data(context)
        if is_module:
            return (
                f"{LOOK_INSIDE}; with task tensor, too, a replay can prove it"
                if wants
                else LOOK_INSIDE
            )
        return wants or self._advise_replay(context)

    def can_be_settled(self, cause: Cause) -> bool:
        """Whether a replay that was not made may add something."""
        return True

    def may_be_victim(self, context: Context) -> bool:
        """Whether the error of an earlier suspect may explain it: inputs far off, result not."""
        found = self.unexplained
        if found.output.basis != "data":
            # Of values that differ statistics show some differences and not others.
            return True
        # Inputs no further apart are as they would be without the culprit; where nothing differed
        # before it, that is not at all.
        noise = 0.0
        if context.typical_distance:
            unit = roundoff_of(found.output.candidate.dtype)
            noise = max(
                tolerances.EQUAL_INPUTS * unit, tolerances.USUAL_TIMES * context.typical_distance
            )
        return found.inherited > noise and found.times < tolerances.BEYOND_DOUBT

    def _missing_data(self, context: Context) -> str:
        """Say which run must be captured with its data for a replay; empty where both are."""
        output = self.unexplained.output
        has_data = [side.data_name is not None for side in (output.candidate, output.reference)]
        if all(has_data):
            return ""
        if any(has_data):
            lacks = "reference" if has_data[0] else "candidate"
            return f"capture the {lacks} with task tensor, too: a replay can prove it"
        if context.basis == "checksums":
            return (
                "capture both runs with task statistics, which shows how far it is off, or tensor, "
                "with which a replay can prove it"
            )
        return _PROVE

    def _advise_replay(self, context: Context) -> str:
        reason = context.unreplayed.get(self.call)
        if reason is None and context.effort.settles_doubts:
            # The data are there; nobody has looked at them closely yet.
            return "tensorprobe blame replays it: that proves it, and shows more"
        if reason is None:
            return PROOF_ADVICE
        return f"compare its implementation on both sides; it cannot be replayed here: {reason}"


@dataclass(frozen=True, slots=True)
class OtherReceived(UnexplainedResult):
    """A collective that hands out something else though no rank sent something else."""

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        return Cause(
            "communication",
            "what this rank sent agrees, what it received does not, and no rank sent a bad value",
            "check the group, the order of the collectives and the network",
        )

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next."""
        return cause.advice

    def can_be_settled(self, cause: Cause) -> bool:
        """Whether a replay may add something: a collective cannot be replayed."""
        return False


@dataclass(frozen=True, slots=True)
class OtherDraw(UnexplainedResult):
    """An operation that draws other random numbers."""

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        return Cause(
            "randomness",
            "it draws random numbers, and the runs drew others",
            "seed both runs alike (tensorprobe.seed_all) or turn dropout off, then capture again",
        )

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next."""
        return cause.advice

    def can_be_settled(self, cause: Cause) -> bool:
        """Whether a replay may add something: it does not draw the same."""
        return False

    def nothing_to_prove(self, cause: Cause) -> str:
        """Return why no replay can show the fault."""
        return "nothing to replay: the two runs draw other random numbers, which are not recorded"
