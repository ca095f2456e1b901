"""Leave out suspects that only show the culprit's fault once more.

A module around the culprit has its result; what a wrong call computes forward is mostly wrong on
the way back too; calls that stand together, each made by one run only, are one change of the code.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.blame.analyse import RankAnalysis, Suspect
from tensorprobe.blame.order import forward_name, stretch_around
from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.errors import NameFormatError
from tensorprobe.store import RankDump

__all__ = ["drop_echoes", "part_of"]


def drop_echoes(ordered: Sequence[RankSuspect]) -> list[RankSuspect]:
    """Return the suspects without those that echo the first one."""
    if not ordered:
        return []
    first = ordered[0]
    around = _modules_around(first)
    together = {
        pair.position
        for pair in stretch_around(first.suspect.position, first.analysis.pairs)
        if first.suspect.basis == "sequence"
    }
    kept = [first]
    for entry in ordered[1:]:
        is_same_rank = entry.analysis is first.analysis
        is_together = entry.suspect.basis == "sequence" and entry.suspect.position in together
        is_echo = is_together or entry.suspect.call in around or _is_way_back(entry, first)
        if not (is_same_rank and is_echo):
            kept.append(entry)
    return kept


def _is_way_back(entry: RankSuspect, first: RankSuspect) -> bool:
    """Whether a suspect is the gradient of the first one's own call."""
    if entry.suspect.phase != "backward" or first.suspect.phase != "forward":
        return False
    try:
        return forward_name(entry.suspect.call) == first.suspect.call
    except NameFormatError:
        return False


def part_of(suspect: Suspect, analysis: RankAnalysis) -> RankDump:
    """Return the run in whose record a suspect stands: the candidate's unless it lacks the call."""
    pair = analysis.pairs[suspect.position]
    if suspect.basis == "sequence":
        return (analysis.reference if pair.candidate is None else analysis.candidate).part
    is_known = suspect.call in analysis.candidate.calls
    return (analysis.candidate if is_known else analysis.reference).part


def _modules_around(entry: RankSuspect) -> set[str]:
    part = part_of(entry.suspect, entry.analysis)
    found: set[str] = set()
    name = part.parent(entry.suspect.call)
    while name is not None and name not in found:
        found.add(name)
        name = part.parent(name)
    return found
