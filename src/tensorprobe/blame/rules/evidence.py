"""What every piece of evidence can say: who, how sure, what it looks like, and what to do next.

A rule looks at one call in the context of its run and returns evidence or None. What is particular
about a kind of evidence stands in its own class, beside the rule that finds it; nobody else asks
which kind it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from tensorprobe.blame.call_split import OutputSplit
from tensorprobe.blame.causes import Cause
from tensorprobe.blame.changed_arguments import ArgumentChange, find_changed_arguments
from tensorprobe.blame.context import Context
from tensorprobe.errors import NameFormatError
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.pairing.run_order import Phase, forward_name
from tensorprobe.records import Frame, TensorValue
from tensorprobe.rounding.distance import Distance
from tensorprobe.rounding.explain import Unexplained
from tensorprobe.rounding.limit import Limit
from tensorprobe.store import RankDump

__all__ = ["CallInContext", "Confidence", "Evidence"]

Confidence = Literal["certain", "likely", "possible"]


@dataclass(frozen=True, slots=True)
class CallInContext:
    """One call as a rule sees it.

    Attributes:
        context: what is known of its rank.
        pair: the call in both runs.
        found: the evidence against calls before it.
    """

    context: Context
    pair: CallPair
    found: Sequence[Evidence]

    @property
    def is_shared(self) -> bool:
        """Whether both runs make the call."""
        return self.pair.candidate is not None and self.pair.reference is not None

    @property
    def unexplained(self) -> Unexplained | None:
        """The result that its inputs and rounding do not explain, or None."""
        return self.context.unexplained(self.pair)

    @property
    def changes(self) -> tuple[ArgumentChange, ...]:
        """The arguments that are no tensors and differ."""
        assert self.pair.candidate is not None and self.pair.reference is not None
        return find_changed_arguments(self.pair.candidate, self.pair.reference)


@dataclass(frozen=True, slots=True)
class Evidence(ABC):
    """Something that came up at a call and that its inputs do not explain.

    Attributes:
        call: its name in the candidate, or in the reference where only that has it.
        position: its place in the order of the run.
        phase: forward or backward.
        value_path: the value that shows it, `output.0`.
        times: how many times the error is above its floor.
        basis: the word for this kind of evidence in the JSON form.
        told_by: what it rests on, for people.
        stands_alone: whether it stands however much the runs differ from the start, as a replay
            from a run's own inputs does.
        tells_result: whether the distance of its result belongs to what is told.
    """

    call: str
    position: int
    phase: Phase
    value_path: str
    times: float

    basis: ClassVar[str]
    told_by: ClassVar[str]
    stands_alone: ClassVar[bool] = False
    tells_result: ClassVar[bool] = True

    @property
    @abstractmethod
    def confidence(self) -> Confidence:
        """How sure it is: what was proved, what is told by a yardstick, what is first."""

    @abstractmethod
    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""

    def next_step(self, cause: Cause, context: Context) -> str:
        """Return what to do next, fitted to what the dumps already hold."""
        return cause.advice

    def nothing_to_prove(self, cause: Cause) -> str | None:
        """Return why no replay can show the fault; None if one can."""
        return None

    def can_be_settled(self, cause: Cause) -> bool:
        """Whether a replay that was not made may add something."""
        return False

    def may_be_victim(self, context: Context) -> bool:
        """Whether it may be no more than what the error of an earlier suspect leads to."""
        return False

    def shows_again(self, other: Evidence, context: Context) -> bool:
        """Whether other evidence of the same rank only shows where this fault comes to light."""
        return False

    @property
    def split(self) -> OutputSplit | None:
        """The numbers of a replay, where there was one."""
        return None

    @property
    def limit(self) -> Limit | None:
        """How far off the result may be and why, where distances were judged."""
        return None

    @property
    def measure(self) -> str:
        """Which yardstick of the replay tells; empty without one."""
        return ""

    @property
    def beyond(self) -> str:
        """How far an error is beyond what is no fault, in words; empty where that is no number."""
        if math.isinf(self.times):
            return ""
        return f", {self.times:.3g} times what inputs and rounding explain"

    @property
    def made_words(self) -> str:
        """What of its result's distance was made in the call, in words."""
        return self.beyond

    def part(self, context: Context) -> RankDump:
        """Return the run in whose record it stands: the candidate's unless it lacks the call."""
        is_known = self.call in context.candidate.calls
        return (context.candidate if is_known else context.reference).part

    def stack(self, context: Context) -> Sequence[Frame]:
        """Return where the call was made; gradients are where their forward call is."""
        part = self.part(context)
        try:
            return part.stack(self.call) or part.stack(forward_name(self.call))
        except NameFormatError:
            return ()

    def input_distances(self, context: Context) -> Sequence[Distance]:
        """Return how far apart what went into the call is."""
        agreement = context.agreements.get(self.call)
        return () if agreement is None else agreement.inputs

    def output_distances(self, context: Context) -> Sequence[Distance]:
        """Return how far apart what came out of the call is."""
        agreement = context.agreements.get(self.call)
        return () if agreement is None else agreement.outputs

    def results(self, context: Context) -> Iterable[TensorValue | None]:
        """Return what the call gave, by which calls that share a result are recognised."""
        agreement = context.agreements.get(self.call)
        return [] if agreement is None else [d.candidate for d in agreement.outputs]
