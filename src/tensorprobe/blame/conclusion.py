"""What `blame` concludes: the culprit or that there is none, how sure that is, and why.

The schema of the JSON form is docs/blame.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tensorprobe.blame.causes import Cause
from tensorprobe.blame.rules.evidence import Confidence, Evidence
from tensorprobe.blame.start import StartDifferences
from tensorprobe.blame.type_change import TypeChange
from tensorprobe.records import Frame
from tensorprobe.rounding.limit import Limit

__all__ = ["Accused", "Conclusion", "StepSpan", "Verdict"]

Verdict = Literal[
    "culprit",
    "different from the start",
    "noise",
    "identical",
    "incomplete",
    "nothing to compare",
]


@dataclass(frozen=True, slots=True)
class Accused:
    """One suspect as it is reported.

    Attributes:
        evidence: what came up at its call.
        rank: the rank; None for a run that was not distributed.
        step: the step.
        cause: what it looks like.
        inputs: the largest distance of what went in.
        output: the distance of the result.
        frame: the line that makes the call.
        caller: the user's own line that led there, where that is another one.
        module: the module around it.
        victims: how many calls behind it have results that differ.
        received: the ranks that got its value through a collective.
        gradient_only: whether the forward call is right.
    """

    evidence: Evidence
    rank: int | None
    step: int | None
    cause: Cause
    inputs: float | None
    output: float | None
    frame: Frame | None
    caller: Frame | None
    module: str | None
    victims: int
    received: tuple[int, ...]
    gradient_only: bool

    @property
    def call(self) -> str:
        """Its name."""
        return self.evidence.call

    @property
    def value_path(self) -> str:
        """The value that shows it."""
        return self.evidence.value_path

    @property
    def basis(self) -> str:
        """The kind of evidence: replay, inputs, arguments, state, sequence or gap."""
        return self.evidence.basis

    @property
    def times(self) -> float:
        """How many times the error is above its floor."""
        return self.evidence.times

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return self.evidence.confidence

    @property
    def made(self) -> float | None:
        """The relative error that was made in the call, where it was replayed."""
        split = self.evidence.split
        return None if split is None else split.candidate.relative

    @property
    def reference_made(self) -> float | None:
        """The same of the reference."""
        split = self.evidence.split
        return None if split is None else split.reference.relative

    @property
    def inherited(self) -> float | None:
        """The distance that the inputs alone give, where it was replayed."""
        split = self.evidence.split
        return None if split is None else split.inherited

    @property
    def output_norm(self) -> float | None:
        """The norm of the difference over the norm, where it was replayed."""
        split = self.evidence.split
        return None if split is None else split.total

    @property
    def worst(self) -> tuple[int, float, float] | None:
        """Place, recorded and right value of the worst element, where it was replayed."""
        split = self.evidence.split
        if split is None or split.candidate.worst < 0:
            return None
        return split.candidate.worst, split.candidate.got, split.candidate.wanted

    def to_json(self) -> dict[str, Any]:
        """Return what the JSON form says of it."""
        worst = self.worst
        return {
            "call": self.call,
            "rank": self.rank,
            "step": self.step,
            "position": self.evidence.position,
            "phase": self.evidence.phase,
            "value": self.value_path,
            "basis": self.basis,
            "times_above_floor": _number(self.times),
            "kind": self.cause.kind,
            "explanation": self.cause.text,
            "advice": self.cause.advice,
            "confidence": self.confidence,
            "gradient_only": self.gradient_only,
            "inputs_distance": _number(self.inputs),
            "output_distance": _number(self.output),
            "output_norm_distance": _number(self.output_norm),
            "measure": self.evidence.measure or None,
            "made_here": _number(self.made),
            "made_here_by_reference": _number(self.reference_made),
            "inherited": _number(self.inherited),
            "explained": _limit(self.evidence.limit),
            "worst_element": None
            if worst is None
            else {"index": worst[0], "got": _number(worst[1]), "wanted": _number(worst[2])},
            "code": _place(self.frame),
            "called_from": _place(self.caller),
            "module": self.module,
            "victims": self.victims,
            "received_by_ranks": list(self.received),
        }


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Which of several steps an answer is about.

    Attributes:
        step: the step.
        steps: all that both runs have, in their order.
    """

    step: int | None
    steps: tuple[int | None, ...]

    @property
    def before(self) -> str:
        """The steps before it, in words; empty without one."""
        earlier = [str(step) for step in self.steps[: self.steps.index(self.step)]]
        return (
            earlier[0] if len(earlier) == 1 else f"{earlier[0]} to {earlier[-1]}" if earlier else ""
        )


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The answer.

    Attributes:
        culprit: the name of the call at fault, or None.
        verdict: culprit, different from the start, noise, identical, incomplete (what could be
            compared agrees, and not all could) or nothing to compare.
        summary: the answer in a sentence.
        accused: the suspects, the culprit first.
        start: what differs before anything ran.
        basis: data, statistics, checksums or nothing: what the dumps hold.
        calls: how many calls both runs have.
        differing: how many of them have results that differ in any bit that was recorded.
        replayed: how many were replayed.
        closest: the call that came closest to its floor though it stayed below, and how close.
        only_candidate: calls that only the candidate has.
        only_reference: calls that only the reference has.
        notes: what else the reader must know.
        span: which step this is about, where there are several.
        left_out: how many calls were not looked at, because there was no time.
        is_cut_short: whether the time ended before every doubt was settled.
        types: in which types the candidate computes where the reference computes in others; None
            where both compute in the same.
        uncompared: where nobody is named, what of the runs could not be compared.
    """

    culprit: str | None
    verdict: Verdict
    summary: str
    accused: tuple[Accused, ...]
    start: StartDifferences
    basis: str
    calls: int
    differing: int
    replayed: int
    closest: tuple[str, float] | None
    only_candidate: tuple[str, ...]
    only_reference: tuple[str, ...]
    notes: tuple[str, ...]
    span: StepSpan | None = None
    left_out: int = 0
    is_cut_short: bool = False
    types: TypeChange | None = None
    uncompared: tuple[str, ...] = ()

    @property
    def first(self) -> Accused | None:
        """The culprit with everything that is known of it, or None."""
        return self.accused[0] if self.culprit is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data, in the schema of docs/blame.md."""
        first = self.first
        return {
            "culprit": self.culprit,
            "verdict": self.verdict,
            "summary": self.summary,
            "kind": None if first is None else first.cause.kind,
            "confidence": None if first is None else first.confidence,
            "rank": None if first is None else first.rank,
            "step": None if first is None else first.step,
            "ranked": [accused.call for accused in self.accused] if first is not None else [],
            "suspects": [accused.to_json() for accused in self.accused],
            "start": {
                "kind": self.start.kind,
                "compared": self.start.compared,
                "tensors": [
                    {"value": f"{use.call}.{use.place}", "distance": _number(distance.value)}
                    for use, distance in self.start.places
                ],
            },
            "types": None
            if self.types is None
            else {
                "candidate": self.types.candidate,
                "reference": self.types.reference,
                "calls": self.types.calls,
                "compared": self.types.compared,
                "first": f"{self.types.call}.{self.types.place}",
            },
            "basis": self.basis,
            "steps": [] if self.span is None else list(self.span.steps),
            "calls": self.calls,
            "differing": self.differing,
            "replayed": self.replayed,
            "closest_to_floor": None
            if self.closest is None
            else {"call": self.closest[0], "times_floor": _number(self.closest[1])},
            "only_in_candidate": list(self.only_candidate),
            "only_in_reference": list(self.only_reference),
            "uncompared": list(self.uncompared),
            "notes": list(self.notes),
        }


def _limit(limit: Limit | None) -> dict[str, Any] | None:
    if limit is None:
        return None
    return {
        "total": _number(limit.total),
        "terms": [{"size": _number(term.total), "reason": term.reason} for term in limit.terms],
    }


def _place(frame: Frame | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {
        "file": frame.path,
        "line": frame.line,
        "function": frame.function,
        "source": frame.source,
    }


def _number(value: float | None) -> float | str | None:
    """Return a number as strict JSON can hold it."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
