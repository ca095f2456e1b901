"""Blame: from two dumps to one conclusion.

open_dump x 2 ─► pair steps and ranks ─► analyse each rank ─► order suspects ─► conclude
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from tensorprobe.blame.analyse import RankAnalysis, analyse_rank
from tensorprobe.blame.causes import is_between_modules, name_cause
from tensorprobe.blame.conclusion import Accused, Conclusion, Confidence, Verdict
from tensorprobe.blame.operations import EXACT, operation_of
from tensorprobe.blame.ranks import RankSuspect, order_suspects
from tensorprobe.blame.start import StartDifferences
from tensorprobe.errors import DumpError, NameFormatError
from tensorprobe.names import forward_of
from tensorprobe.records import Frame
from tensorprobe.store import Dump, RankDump, open_dump

__all__ = ["Investigation", "blame", "investigate"]

_TOP = 5
# Times what is allowed: an estimate of a few numbers is not off by that much again.
_CLEAR = 4
# Frames of these are how a call came about, not where somebody wrote it.
_FOREIGN = ("/torch/", "site-packages", "/msprobe/", "data_dump/", "<frozen ")


class Investigation:
    """A conclusion together with what it rests on, for who wants to go on from there."""

    def __init__(self, conclusion: Conclusion, ordered: Sequence[RankSuspect]) -> None:
        self.conclusion = conclusion
        self.ordered = tuple(ordered)


def blame(
    candidate: str | os.PathLike[str], reference: str | os.PathLike[str], *, top: int = _TOP
) -> Conclusion:
    """Return which operation of the candidate's run is at fault.

    Args:
        candidate: the dump of the run under test: a file or folder of any format.
        reference: the dump of the run that is trusted.
        top: how many suspects to report.

    Raises:
        DumpError: a dump cannot be opened, or the two have no rank and step in common.
    """
    return investigate(candidate, reference, top=top).conclusion


def investigate(
    candidate: str | os.PathLike[str], reference: str | os.PathLike[str], *, top: int = _TOP
) -> Investigation:
    """Return the conclusion and the suspects with all their numbers.

    Raises:
        DumpError: as `blame`.
    """
    ours, theirs = open_dump(Path(candidate)), open_dump(Path(reference))
    steps = _pair_parts(ours, theirs)
    found: tuple[list[RankAnalysis], list[RankSuspect]] | None = None
    for parts in steps:
        analyses = [analyse_rank(mine, other) for mine, other in parts]
        found = analyses, order_suspects(analyses)
        # What went wrong in one step is the input of the next.
        if found[1] or any(analysis.start.kind != "none" for analysis in analyses):
            break
    assert found is not None
    analyses, ordered = found
    return Investigation(_conclude(analyses, ordered, top), ordered)


def _pair_parts(ours: Dump, theirs: Dump) -> list[list[tuple[RankDump, RankDump]]]:
    """Return the ranks that both dumps have, one list for each step."""
    if len(ours.parts) == 1 and len(theirs.parts) == 1:
        return [[(ours.parts[0], theirs.parts[0])]]
    partners = {(part.info.step, part.info.rank): part for part in theirs.parts}
    steps: dict[int | None, list[tuple[RankDump, RankDump]]] = {}
    for part in ours.parts:
        partner = partners.get((part.info.step, part.info.rank))
        if partner is not None:
            steps.setdefault(part.info.step, []).append((part, partner))
    if not steps:
        raise DumpError(
            f"{ours.path} and {theirs.path} have no step and rank in common; there are "
            f"{', '.join(part.label for part in ours.parts[:4])} and "
            f"{', '.join(part.label for part in theirs.parts[:4])}; give two by their folders"
        )
    return list(steps.values())


def _conclude(
    analyses: Sequence[RankAnalysis], ordered: Sequence[RankSuspect], top: int
) -> Conclusion:
    start = max((analysis.start for analysis in analyses), key=lambda s: _GRAVITY[s.kind])
    differs_from_start = start.kind in ("data", "weights")
    # A replay starts from a run's own inputs, so it stands however much they differ.
    usable = [
        entry for entry in ordered if not differs_from_start or entry.suspect.basis == "replay"
    ]
    accused = tuple(_accuse(entry) for entry in usable[:top])
    culprit = accused[0].call if accused else None
    calls = sum(
        pair.candidate is not None and pair.reference is not None
        for analysis in analyses
        for pair in analysis.pairs
    )
    differing = sum(analysis.victims(-1) for analysis in analyses)
    bases = {analysis.basis for analysis in analyses}
    basis = next((b for b in ("data", "statistics", "checksums") if b in bases), "nothing")
    verdict = _verdict(
        culprit, differs_from_start=differs_from_start, differing=differing, calls=calls
    )
    return Conclusion(
        culprit,
        verdict,
        _summarise(verdict, accused, start, calls, differing),
        accused,
        start,
        basis,
        calls,
        differing,
        sum(len(analysis.splits) for analysis in analyses),
        _closest(analyses),
        tuple(p.name for a in analyses for p in a.pairs if p.reference is None),
        tuple(p.name for a in analyses for p in a.pairs if p.candidate is None),
        tuple(_notes(analyses, basis)),
    )


_GRAVITY = {"none": 0, "state": 1, "weights": 2, "data": 3}


def _verdict(
    culprit: str | None, *, differs_from_start: bool, differing: int, calls: int
) -> Verdict:
    if culprit is not None:
        return "culprit"
    if differs_from_start:
        return "different from the start"
    if not calls:
        return "nothing to compare"
    return "noise" if differing else "identical"


def _summarise(
    verdict: Verdict,
    accused: Sequence[Accused],
    start: StartDifferences,
    calls: int,
    differing: int,
) -> str:
    if verdict == "culprit":
        first = accused[0]
        where = "" if first.rank is None else f" on rank {first.rank}"
        return f"{first.call}{where}: {first.cause.text}"
    if verdict == "different from the start":
        use, distance = start.places[0]
        what = "the data" if start.kind == "data" else "the weights"
        return (
            f"{what} of the two runs differ before any operation has run ({len(start.places)} of "
            f"{start.compared} tensors from outside, first {use.call}.{use.place}, by "
            f"{distance.value:.1e}); no operation is at fault for that"
        )
    if verdict == "noise":
        return (
            f"no operation is at fault: {differing} of {calls} calls differ, all by what rounding "
            "and their inputs explain"
        )
    if verdict == "identical":
        return f"no operation is at fault: all {calls} calls agree in everything that was recorded"
    return "the two dumps have no call in common"


def _accuse(entry: RankSuspect) -> Accused:
    analysis, suspect = entry.analysis, entry.suspect
    info = analysis.candidate.part.info
    agreement = analysis.agreements.get(suspect.call)
    inputs = output = None
    if agreement is not None:
        inputs = max((d.value for d in agreement.inputs), default=0.0)
        output = max((d.value for d in agreement.outputs), default=0.0)
    split = suspect.split
    made = None if split is None else split.candidate
    name = suspect.call
    part = analysis.candidate.part if name in analysis.candidate.calls else analysis.reference.part
    return Accused(
        name,
        info.rank,
        info.step,
        suspect.position,
        suspect.phase,
        suspect.place,
        suspect.basis,
        suspect.times,
        name_cause(suspect, analysis),
        _confidence(entry),
        inputs,
        output,
        None if made is None else made.relative,
        None if split is None else split.reference.relative,
        None if split is None else split.inherited,
        None if made is None or made.worst < 0 else (made.worst, made.got, made.wanted),
        _user_frame(part.stack(name)),
        part.parent(name),
        analysis.victims(suspect.position),
        entry.received,
        suspect.phase == "backward" and not _is_forward_suspect(entry),
    )


def _is_forward_suspect(entry: RankSuspect) -> bool:
    try:
        forward = forward_of(entry.suspect.call)
    except NameFormatError:
        return False
    return any(other.call == forward for other in entry.analysis.suspects)


def _confidence(entry: RankSuspect) -> Confidence:
    """Say how sure a suspect is: what was proved, what is told by a yardstick, what is first."""
    suspect = entry.suspect
    if suspect.basis == "state" and is_between_modules(suspect):
        return "likely"
    if suspect.basis in ("arguments", "state"):
        return "certain"
    if suspect.basis == "replay":
        sharp = suspect.measure in ("exact", "nonfinite") or suspect.times > 100
        return "certain" if sharp else "likely"
    if suspect.basis in ("sequence", "gap"):
        return "likely"
    found = suspect.unexplained
    if found is not None and math.isnan(found.output.value):
        # Another checksum may be the rounding of another kernel; a copy has none.
        return "likely" if operation_of(suspect.call) in EXACT else "possible"
    return "likely" if found is not None and found.times >= _CLEAR else "possible"


def _user_frame(frames: Sequence[Frame]) -> Frame | None:
    for frame in frames:
        if not any(part in frame.path for part in _FOREIGN):
            return frame
    return frames[0] if frames else None


def _closest(analyses: Sequence[RankAnalysis]) -> tuple[str, float] | None:
    """Return the replayed call that came closest to its floor, and how close."""
    best: tuple[str, float] | None = None
    for analysis in analyses:
        suspects = {suspect.call for suspect in analysis.suspects}
        for name, split in analysis.splits.items():
            for output in split.outputs:
                if name in suspects or output.exact:
                    continue
                index = len(output.roundoffs) - 1 if analysis.raised else 0
                peak = output.candidate.peaks[min(index, len(output.candidate.peaks) - 1)]
                if best is None or peak > best[1]:
                    best = (name, peak)
    return best


def _notes(analyses: Sequence[RankAnalysis], basis: str) -> list[str]:
    notes = []
    for (family, dtype), _ in {k: v for a in analyses for k, v in a.raised.items()}.items():
        notes.append(
            f"all {family} of {dtype} of the candidate work with fewer bits than {dtype} has "
            "(such as TF32): taken as the way the run works, not as a fault"
        )
    if basis == "statistics":
        notes.append(
            "the dumps hold statistics only: single elements and errors below their noise cannot "
            "be seen; with task tensor calls can be replayed"
        )
    elif basis == "checksums":
        notes.append(
            "the dumps hold checksums only: the first difference can be named, not its size"
        )
    unreplayed = sum(len(analysis.unreplayed) for analysis in analyses)
    if basis == "data" and unreplayed:
        notes.append(f"{unreplayed} calls cannot be replayed and were judged by their distances")
    return notes
