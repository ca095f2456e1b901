"""Blame: from two dumps to one conclusion.

open_dump x 2 ─► pair steps and ranks ─► analyse each rank ─► order suspects ─► conclude
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorprobe.blame.analyse import RankAnalysis, analyse_rank
from tensorprobe.blame.conclusion import Accused, Conclusion, StepSpan, Verdict
from tensorprobe.blame.context import Context
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.notes import notes_on
from tensorprobe.blame.places import find_places
from tensorprobe.blame.ranks import RankSuspect, order_suspects
from tensorprobe.blame.rules.own_backward import frame_in_backward
from tensorprobe.blame.secondary_suspects import drop_secondary_suspects
from tensorprobe.blame.start import StartDifferences
from tensorprobe.blame.text import count_tensors
from tensorprobe.blame.type_change import TypeChange
from tensorprobe.blame.uncompared import count_uncompared, find_uncompared
from tensorprobe.blame.words import distance_words
from tensorprobe.compare.evidence import PartEvidence
from tensorprobe.compare.inputs import name_inputs
from tensorprobe.errors import ConfigError, DumpError, NameFormatError
from tensorprobe.names import forward_of
from tensorprobe.pairing.ranks import pair_parts
from tensorprobe.replay.memory import require_memory
from tensorprobe.rounding.distance import Distance
from tensorprobe.store import open_dump

__all__ = ["Investigation", "blame", "investigate", "investigate_parts"]

_TOP = 5


class Investigation:
    """A conclusion together with what it rests on, for who wants to go on from there.

    Attributes:
        conclusion: who is at fault.
        ordered: every suspect, the first one first.
        missing: what of the dumps could not be read, and so was not looked at.
    """

    def __init__(
        self,
        conclusion: Conclusion,
        ordered: Sequence[RankSuspect],
        missing: Sequence[str] = (),
    ) -> None:
        self.conclusion = conclusion
        self.ordered = tuple(ordered)
        self.missing = tuple(missing)


def blame(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None = None,
    *,
    top: int = _TOP,
    timeout: float = 60.0,
    memory: float | None = None,
) -> Conclusion:
    """Return which operation of the candidate's run is at fault.

    Args:
        candidate: the dump of the run under test: a file or folder of any format; or, without a
            reference, a compare.json that names both, or a dict with its fields.
        reference: the dump of the run that is trusted.
        top: how many suspects to report.
        timeout: how many seconds the replay of one call may take.
        memory: how many GiB the process that replays them may take; None: what there is.

    Raises:
        DumpError: a dump cannot be opened, or the two have no rank and step in common.
        ConfigError: the compare.json cannot be used, or an option has no sense.
    """
    return investigate(candidate, reference, top=top, timeout=timeout, memory=memory).conclusion


def investigate(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None = None,
    *,
    top: int = _TOP,
    timeout: float = 60.0,
    memory: float | None = None,
) -> Investigation:
    """Return the conclusion and the suspects with all their numbers.

    Raises:
        DumpError: as `blame`.
        ConfigError: as `blame`.
    """
    if top < 1:
        raise ConfigError(f"top is {top}, wanted 1 or more: how many suspects to report")
    if not timeout > 0:
        raise ConfigError(f"timeout is {timeout}, wanted a number of seconds over 0")
    require_memory(memory)
    inputs = name_inputs(candidate, reference)
    ours, theirs = open_dump(inputs.candidate), open_dump(inputs.reference)
    if inputs.stack is not None and len(ours.parts) == 1:
        ours.parts[0].read_stacks_from(inputs.stack)
    pairs, problems = pair_parts(ours, theirs)
    if not pairs:
        raise DumpError(
            f"{ours.path} and {theirs.path} have no step and rank in common: {problems[0]}; give "
            "two by their folders"
        )
    effort = Effort(timeout=timeout, memory=memory)
    evidence = [PartEvidence(*pair, None, {}) for pair in pairs]
    found = investigate_parts(evidence, top=top, effort=effort, missing=problems)
    gaps = [gap for pair in pairs for part in pair for gap in part.known_gaps]
    return Investigation(found.conclusion, found.ordered, (*problems, *map(str, gaps)))


def investigate_parts(
    parts: Sequence[PartEvidence],
    *,
    top: int = _TOP,
    effort: Effort | None = None,
    missing: Sequence[str] = (),
) -> Investigation:
    """Return the conclusion about ranks and steps that are open, as `investigate` does.

    Args:
        parts: both runs' ranks and steps, with what is known of them.
        top: how many suspects to report.
        effort: how much may be done; None: everything.
        missing: the ranks and steps that only one run has, a sentence each.
    """
    steps: dict[int | None, list[PartEvidence]] = {}
    for part in parts:
        steps.setdefault(part.candidate.info.step, []).append(part)
    before = Passed(uncompared=tuple(missing))
    for number, (step, members) in enumerate(steps.items()):
        analyses = [
            analyse_rank(
                part.candidate,
                part.reference,
                known=part.distances,
                first=part.first_unlike,
                typical_in_step_before=before.typical_distance,
                effort=effort or Effort(),
            )
            for part in members
        ]
        ordered = order_suspects(analyses)
        # What went wrong in one step is the input of the next.
        has_answer = ordered or any(
            analysis.start.kind != "none"
            or analysis.context.works_otherwise
            or analysis.context.mismatch
            for analysis in analyses
        )
        if has_answer or number == len(steps) - 1:
            span = StepSpan(step, tuple(steps)) if len(steps) > 1 else None
            return Investigation(_conclude(analyses, ordered, top, before, span), ordered)
        before = before.add([analysis.context for analysis in analyses])
    raise DumpError("there is nothing to compare: the two runs have no rank in common")


@dataclass(frozen=True, slots=True)
class Passed:
    """Counts of the steps before, in which nobody is at fault, and how far they are apart.

    What could not be compared there is listed.
    """

    calls: int = 0
    differing: int = 0
    replayed: int = 0
    typical_distance: float = 0.0
    uncompared: tuple[str, ...] = ()

    def add(self, contexts: Sequence[Context], *, has_culprit: bool = False) -> Passed:
        """Return the counts with those of one more step; who has a culprit asks for no more."""
        return Passed(
            self.calls + sum(_common_calls(context) for context in contexts),
            self.differing + sum(context.victims(-1) for context in contexts),
            self.replayed + sum(len(context.splits) for context in contexts),
            max(self.typical_distance, *(context.typical_distance for context in contexts)),
            self.uncompared if has_culprit else (*self.uncompared, *find_uncompared(contexts)),
        )


def _common_calls(context: Context) -> int:
    return sum(pair.candidate is not None and pair.reference is not None for pair in context.pairs)


def _conclude(
    analyses: Sequence[RankAnalysis],
    ordered: Sequence[RankSuspect],
    top: int,
    before: Passed,
    span: StepSpan | None,
) -> Conclusion:
    contexts = [analysis.context for analysis in analyses]
    start = max((analysis.start for analysis in analyses), key=lambda s: _GRAVITY[s.kind])
    types = next((context.types for context in contexts if context.works_otherwise), None)
    differs_from_start = start.kind in ("data", "weights") or types is not None
    usable = [
        entry
        for entry in ordered
        if entry.analysis.context.mismatch is None
        and (entry.suspect.stands_alone or not differs_from_start)
    ]
    is_unlike = all(context.mismatch is not None for context in contexts)
    mismatch = contexts[0].mismatch if is_unlike else None
    accused = tuple(_accuse(entry) for entry in drop_secondary_suspects(usable)[:top])
    culprit = accused[0].call if accused else None
    total = before.add(contexts, has_culprit=culprit is not None)
    bases = {context.basis for context in contexts}
    basis = next((b for b in ("data", "statistics", "checksums") if b in bases), "nothing")
    verdict = _verdict(
        culprit,
        differs_from_start=differs_from_start,
        differing=total.differing,
        calls=0 if mismatch is not None else total.calls,
        is_complete=not total.uncompared,
    )
    uncompared = total.uncompared if verdict in ("noise", "incomplete") else ()
    summary = str(mismatch)
    if mismatch is None:
        summary = _summarise(verdict, accused, start, types, total, span, basis)
    pairs = [pair for context in contexts for pair in context.pairs]
    return Conclusion(
        culprit=culprit,
        verdict=verdict,
        summary=summary,
        accused=accused,
        start=start,
        basis=basis,
        calls=total.calls,
        differing=total.differing,
        replayed=total.replayed,
        closest=_closest(analyses),
        only_candidate=tuple(pair.name for pair in pairs if pair.reference is None),
        only_reference=tuple(pair.name for pair in pairs if pair.candidate is None),
        notes=tuple(notes_on(contexts, basis, uncompared if verdict == "noise" else ())),
        span=span,
        left_out=sum(context.left_out for context in contexts),
        is_cut_short=any(context.replays.is_cut_short for context in contexts),
        types=types,
        uncompared=uncompared,
    )


_GRAVITY = {"none": 0, "state": 1, "weights": 2, "data": 3}


def _verdict(
    culprit: str | None,
    *,
    differs_from_start: bool,
    differing: int,
    calls: int,
    is_complete: bool,
) -> Verdict:
    if culprit is not None:
        return "culprit"
    if not calls:
        return "nothing to compare"
    if differs_from_start:
        return "different from the start"
    if differing:
        return "noise"
    return "identical" if is_complete else "incomplete"


def _summarise(
    verdict: Verdict,
    accused: Sequence[Accused],
    start: StartDifferences,
    types: TypeChange | None,
    total: Passed,
    span: StepSpan | None,
    basis: str,
) -> str:
    if verdict == "culprit":
        first = accused[0]
        where = "" if first.rank is None else f" on rank {first.rank}"
        where += "" if span is None else f" in step {span.step}"
        return f"{first.call}{where}: {first.cause.text}"
    if verdict == "different from the start" and types is not None:
        return f"{types}; no operation is at fault for that"
    if verdict == "different from the start":
        use, distance = start.places[0]
        what = "the data" if start.kind == "data" else "the weights"
        when = "before any operation has run"
        why = "no operation is at fault for that"
        if span is not None and span.before:
            when = f"when step {span.step} begins, though nobody is at fault in step {span.before}"
            why = "what happens between the steps (the optimizer) was not recorded"
        return (
            f"{what} of the two runs differ {when} ({count_tensors(start)} that no recorded call "
            f"made, first {use.call}.{use.place}, by {distance_words(distance.value)}); {why}"
        )
    if verdict == "noise" and basis == "checksums":
        return (
            f"nobody can be named: {total.differing} of {total.calls} calls differ, each behind "
            "inputs that differ already, and checksums do not tell by how much"
        )
    if verdict == "noise" and basis == "data" and not total.replayed:
        return (
            f"nobody stands out: {total.differing} of {total.calls} calls differ, all by what "
            "rounding and their inputs may explain; none was replayed"
        )
    if verdict == "noise":
        return (
            f"no operation is at fault: {total.differing} of {total.calls} calls differ, all by "
            "what rounding and their inputs explain"
        )
    if verdict == "incomplete":
        return (
            f"no operation can be named: what was compared of {total.calls} calls agrees, but "
            f"{count_uncompared(total.uncompared)}"
        )
    if verdict == "identical":
        return (
            f"no operation is at fault: all {total.calls} calls agree in everything that was "
            "recorded"
        )
    return "the two dumps have no call in common"


def _accuse(entry: RankSuspect) -> Accused:
    context, evidence = entry.analysis.context, entry.suspect
    info = context.candidate.part.info
    cause = evidence.read_cause(context)
    frame, caller = find_places(evidence.stack(context))
    return Accused(
        evidence=evidence,
        rank=info.rank,
        step=info.step,
        cause=replace(cause, advice=evidence.next_step(cause, context)),
        inputs=_largest(evidence.input_distances(context)),
        output=_largest(evidence.output_distances(context)),
        frame=frame,
        caller=caller,
        module=evidence.part(context).parent(evidence.call),
        victims=context.victims(evidence.position),
        received=entry.received,
        gradient_only=_is_gradient_only(entry),
    )


def _largest(distances: Sequence[Distance]) -> float | None:
    """Return the largest distance; NaN where only checksums tell that there is one, None of none.

    Of what was not recorded nobody can say that it agrees.
    """
    known = max((d.value for d in distances if not math.isnan(d.value)), default=None)
    is_unknown = any(math.isnan(d.value) for d in distances)
    return math.nan if is_unknown and not known else known


def _is_gradient_only(entry: RankSuspect) -> bool:
    """Whether a suspect is a gradient, or made for one, and its forward call is right."""
    evidence = entry.suspect
    if evidence.phase == "backward":
        return not _is_forward_suspect(entry)
    return frame_in_backward(evidence.stack(entry.analysis.context)) is not None


def _is_forward_suspect(entry: RankSuspect) -> bool:
    try:
        forward = forward_of(entry.suspect.call)
    except NameFormatError:
        return False
    return any(other.call == forward for other in entry.analysis.suspects)


def _closest(analyses: Sequence[RankAnalysis]) -> tuple[str, float] | None:
    """Return the replayed call that came closest to its floor, and how close."""
    best: tuple[str, float] | None = None
    for analysis in analyses:
        suspects = {suspect.call for suspect in analysis.suspects}
        for name, split in analysis.context.splits.items():
            for output in split.outputs:
                if name in suspects or output.exact:
                    continue
                index = len(output.roundoffs) - 1 if analysis.context.raised else 0
                peak = output.candidate.peaks[min(index, len(output.candidate.peaks) - 1)]
                if best is None or peak > best[1]:
                    best = (name, peak)
    return best
