"""A call whose replay, with its own inputs, gives another result than it gave in the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.call_split import OutputSplit
from tensorprobe.blame.causes import Cause, read_error
from tensorprobe.blame.context import Context
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence
from tensorprobe.blame.rules.other_arguments import TOLD_OTHERWISE
from tensorprobe.blame.suspicion import Suspicion
from tensorprobe.blame.words import distance_words
from tensorprobe.rounding import tolerances

__all__ = ["LOOK_INSIDE", "LOOK_OUTSIDE", "ReplayedError", "find_replayed_error", "made_here"]

LOOK_INSIDE = "capture at level mix: it names the call inside this module"
LOOK_OUTSIDE = (
    "no recorded call inside it is at fault: look at what it runs beside them, such as kernels of "
    "its own or changes in place"
)
_MEASURED = {
    "peak": "at its worst element ",
    "level": "over all elements ",
    "once": "over all elements ",
    "factor": "in the factor that all elements have in common ",
}


def find_replayed_error(call: CallInContext) -> ReplayedError | None:
    """Suspect a call whose replay shows an error that nothing excuses."""
    pair, suspicion = call.pair, call.context.suspicions.get(call.pair.name)
    if suspicion is None:
        return None
    return ReplayedError(
        call=pair.name,
        position=pair.position,
        phase=pair.phase,
        value_path=suspicion.output.place,
        times=suspicion.times,
        suspicion=suspicion,
    )


@dataclass(frozen=True, slots=True)
class ReplayedError(Evidence):
    """A call that made an error.

    Attributes:
        suspicion: what the replay shows, and by which yardstick.
    """

    suspicion: Suspicion

    basis = "replay"
    told_by = "replaying the call in float64 with each run's own inputs"
    stands_alone = True

    @property
    def split(self) -> OutputSplit:
        """The numbers of the replay."""
        return self.suspicion.output

    @property
    def measure(self) -> str:
        """Which yardstick of the replay tells."""
        return self.suspicion.measure

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        is_sharp = self.measure in ("exact", "nonfinite") or self.times > tolerances.CERTAIN
        return "certain" if is_sharp else "likely"

    @property
    def beyond(self) -> str:
        """How far the error is beyond what would be no fault."""
        if math.isinf(self.times):
            return ""
        times = f"{self.times:.3g} times what"
        if self.measure == "peers":
            return f"; {times} other calls of this operation make"
        return f"; {_MEASURED.get(self.measure, '')}{times} rounding explains"

    @property
    def made_words(self) -> str:
        """What of its result's distance was made in the call."""
        return f"{made_here(self.split)}{self.beyond}"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        replayed = context.splits[self.call]
        if replayed.settings is not None:
            ours, theirs = replayed.settings
            return Cause(
                "argument",
                f"its result is what {ours} gives, the reference's what {theirs} gives; how "
                "modules are set was not recorded",
                "compare how this module is made in both runs",
            )
        return read_error(self.call, self.split, self.measure, self.suspicion.working)

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next."""
        if not self.call.startswith("Module."):
            return cause.advice
        if not context.has_calls_of_functions and cause.kind != "argument":
            more = "a proof can be written of that" if cause.is_for_a_proof else cause.advice
            return f"{LOOK_INSIDE}; {more}"
        return LOOK_OUTSIDE if cause.is_for_a_proof else cause.advice

    def nothing_to_prove(self, cause: Cause) -> str | None:
        """Return why no replay can show the fault; None if one can."""
        return TOLD_OTHERWISE if cause.kind == "argument" else None


def made_here(split: OutputSplit) -> str:
    """Say what both runs' calls made of a distance."""
    return (
        f"; made here {distance_words(split.candidate.relative)}, by the reference "
        f"{distance_words(split.reference.relative)}"
    )
