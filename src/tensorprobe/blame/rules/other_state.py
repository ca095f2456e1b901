"""A parameter, a buffer or another value that comes from outside and differs, of a single call."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.argument_names import name_argument
from tensorprobe.blame.causes import Cause
from tensorprobe.blame.context import Context
from tensorprobe.blame.passed_on import is_handed_on
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence
from tensorprobe.blame.start import may_be_made

__all__ = ["OtherState", "find_other_state"]


def find_other_state(call: CallInContext) -> OtherState | None:
    """Suspect a call that is given something else from outside.

    Behind a forward suspect, what a call that was not recorded may have made is no state.
    """
    start, pair = call.context.start, call.pair
    if start.kind != "state":
        return None
    places = [distance for use, distance in start.places if use.call == pair.name]
    if not places:
        return None
    distance = places[-1]
    if any(evidence.phase == "forward" for evidence in call.found) and (
        is_handed_on(pair.name, distance.place) or may_be_made(pair, distance)
    ):
        return None
    return OtherState(
        call=pair.name,
        position=pair.position,
        phase=pair.phase,
        value_path=distance.place,
        times=math.inf,
    )


@dataclass(frozen=True, slots=True)
class OtherState(Evidence):
    """A call that is given something else from outside."""

    basis = "state"
    told_by = "the recorded inputs"

    @property
    def is_between_modules(self) -> bool:
        """Whether it is given to a module: code that runs around it may have made it."""
        return is_handed_on(self.call, self.value_path)

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return "likely" if self.is_between_modules else "certain"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        if self.is_between_modules:
            return Cause(
                "state",
                f"{self.value_path} differs, and no recorded module made it: it comes from outside "
                "or from code between modules",
                "capture at level mix, which records what runs between modules",
            )
        return Cause(
            "state",
            f"{name_argument(self.call, self.value_path)} comes from outside and differs; the "
            "operation itself computes what its inputs give",
            "compare where this parameter or buffer is loaded, initialised or updated",
        )

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next."""
        if self.is_between_modules and context.has_calls_of_functions:
            return "see what makes this value: no recorded call does"
        return cause.advice

    def nothing_to_prove(self, cause: Cause) -> str:
        """Return why no replay can show the fault."""
        return "nothing to replay: the operation computes what its inputs give, and these differ"
