"""A call that is told to compute something else: a number, a text or a flag differs."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprobe.blame.argument_names import name_argument
from tensorprobe.blame.causes import Cause
from tensorprobe.blame.changed_arguments import ArgumentChange
from tensorprobe.blame.context import Context
from tensorprobe.blame.rules.evidence import CallInContext, Confidence, Evidence

__all__ = ["TOLD_OTHERWISE", "OtherArguments", "find_other_arguments"]

TOLD_OTHERWISE = (
    "nothing to replay: the operation computes what it is told to, and the two runs tell it "
    "otherwise"
)


def find_other_arguments(call: CallInContext) -> OtherArguments | None:
    """Suspect a forward call whose arguments differ, and whose result its inputs do not explain."""
    pair, unexplained = call.pair, call.unexplained
    if unexplained is None or pair.phase != "forward":
        return None
    changes = call.changes
    if not changes:
        return None
    return OtherArguments(
        call=pair.name,
        position=pair.position,
        phase=pair.phase,
        value_path=unexplained.output.place,
        times=unexplained.times,
        changes=changes,
    )


@dataclass(frozen=True, slots=True)
class OtherArguments(Evidence):
    """A call with other arguments.

    Attributes:
        changes: the arguments that differ.
    """

    changes: tuple[ArgumentChange, ...]

    basis = "arguments"
    told_by = "the recorded arguments"

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return "certain"

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        changes = "; ".join(
            f"{name_argument(self.call, change.place)} is {change.candidate}, in the reference "
            f"{change.reference}"
            for change in self.changes
        )
        return Cause(
            "argument",
            f"it is called with other arguments: {changes}",
            "compare the configuration and the code around this call",
        )

    def nothing_to_prove(self, cause: Cause) -> str:
        """Return why no replay can show the fault."""
        return TOLD_OTHERWISE
