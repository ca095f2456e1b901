"""Leave out suspects that only show the culprit's fault once more.

A module around the culprit has its result, and calls that stand together and that only one run
makes are one change of the code.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.blame.analyse import RankAnalysis, Suspect
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.store import RankDump

__all__ = ["drop_echoes", "part_of", "stretch_of"]


def drop_echoes(ordered: Sequence[RankSuspect]) -> list[RankSuspect]:
    """Return the suspects without those that echo the first one."""
    if not ordered:
        return []
    first = ordered[0]
    around = _modules_around(first)
    together = {
        pair.position
        for pair in stretch_of(first.suspect, first.analysis)
        if first.suspect.basis == "sequence"
    }
    kept = [first]
    for entry in ordered[1:]:
        is_same_rank = entry.analysis is first.analysis
        is_together = entry.suspect.basis == "sequence" and entry.suspect.position in together
        if not (is_same_rank and (entry.suspect.call in around or is_together)):
            kept.append(entry)
    return kept


def part_of(suspect: Suspect, analysis: RankAnalysis) -> RankDump:
    """Return the run in whose record a suspect stands: the candidate's unless it lacks the call."""
    pair = analysis.pairs[suspect.position]
    if suspect.basis == "sequence":
        return (analysis.reference if pair.candidate is None else analysis.candidate).part
    is_known = suspect.call in analysis.candidate.calls
    return (analysis.candidate if is_known else analysis.reference).part


def stretch_of(suspect: Suspect, analysis: RankAnalysis) -> list[CallPair]:
    """Return the calls from a suspect on that only the same one run makes, one after the other."""
    found = []
    pairs = analysis.pairs
    is_missing = pairs[suspect.position].candidate is None
    for pair in pairs[suspect.position :]:
        absent, present = (
            (pair.candidate, pair.reference) if is_missing else (pair.reference, pair.candidate)
        )
        if absent is not None or present is None:
            break
        found.append(pair)
    return found


def _modules_around(entry: RankSuspect) -> set[str]:
    part = part_of(entry.suspect, entry.analysis)
    found: set[str] = set()
    name = part.parent(entry.suspect.call)
    while name is not None and name not in found:
        found.add(name)
        name = part.parent(name)
    return found
