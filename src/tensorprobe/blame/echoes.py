"""Leave out suspects that only show the culprit's fault once more, or that it may explain.

A module around the culprit has its result, and so has a call that hands it on under another name;
what a wrong call computes forward is mostly wrong on the way back too, its own and that of the
modules around it; a collective is one event on all its ranks. Behind the culprit, values differ
because of it: a call that was judged by how far its inputs and results are apart stays a suspect
only if there are data, and its inputs are no further off than noise or its results by much more
than any estimate may be off. One that only one run makes was judged by what follows it, which
differs anyway. What was proved of a call alone stays: by its replay, its arguments, its state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorprobe.blame.agreement import StatisticsKey, is_float, roundoff_of, statistics_key
from tensorprobe.blame.analyse import RankAnalysis, Suspect
from tensorprobe.blame.evidence import results_of
from tensorprobe.blame.order import forward_name, stretch_around
from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.errors import NameFormatError
from tensorprobe.store import RankDump

__all__ = ["drop_echoes", "part_of"]

# Inputs that are no further apart than this are as they would be without the culprit; where nothing
# differed before it, that is not at all.
_ROUNDINGS = 64
_TIMES_NOISE = 16
_BEYOND_DOUBT = 20.0


def drop_echoes(ordered: Sequence[RankSuspect]) -> list[RankSuspect]:
    """Return the suspects without those that echo the first one, or that it may explain."""
    if not ordered:
        return []
    first = ordered[0]
    around, results = _modules_around(first), _results(first)
    first_forward = _forward_of(first.suspect)
    kept = [first]
    for entry in ordered[1:]:
        is_same_rank = entry.analysis is first.analysis
        is_echo = (
            entry.suspect.call in around
            or _is_way_back(entry, {first_forward, *around})
            or not results.isdisjoint(_results(entry))
            or _is_where_it_shows(entry, first)
        )
        if not (is_same_rank and is_echo) and not _may_be_victim(entry):
            kept.append(entry)
    return kept


def _is_where_it_shows(entry: RankSuspect, first: RankSuspect) -> bool:
    """Whether a copy only shows what a call that one run alone makes has changed in place."""
    if first.suspect.lone is None or entry.suspect.measure != "exact":
        return False
    follower = first.suspect.lone.follower
    last = next(p.position for p in first.analysis.pairs if follower.startswith(f"{p.name}."))
    return first.suspect.position < entry.suspect.position <= last


def _results(entry: RankSuspect) -> set[StatisticsKey]:
    """Return what identifies the results of a suspect's call: calls may share an autograd node."""
    suspect, analysis = entry.suspect, entry.analysis
    if suspect.basis == "sequence":
        # What calls that only one run makes give, in place say, may be recorded of others, too.
        stretch = stretch_around(suspect.position, analysis.pairs)
        calls = [pair.candidate or pair.reference for pair in stretch]
        values = [v for call in calls if call is not None for v in results_of(call)]
    else:
        agreement = analysis.agreements.get(suspect.call)
        values = [] if agreement is None else [d.candidate for d in agreement.outputs]
    keys = (statistics_key(value) for value in values if value is not None and is_float(value))
    return {key for key in keys if key is not None}


def _may_be_victim(entry: RankSuspect) -> bool:
    """Whether a suspect behind the first may be no more than what that one's error leads to."""
    suspect = entry.suspect
    if suspect.basis in ("sequence", "gap"):
        return True
    found = suspect.unexplained
    if suspect.basis != "inputs" or found is None:
        return False
    if found.output.basis != "data":
        # Of values that differ statistics show some differences and not others.
        return True
    noise = 0.0
    if entry.analysis.background:
        unit = roundoff_of(found.output.candidate.dtype)
        noise = max(_ROUNDINGS * unit, _TIMES_NOISE * entry.analysis.background)
    return found.inherited > noise and found.times < _BEYOND_DOUBT


def _is_way_back(entry: RankSuspect, forward: Collection[str | None]) -> bool:
    """Whether a suspect is a gradient of one of these forward calls."""
    return entry.suspect.phase == "backward" and _forward_of(entry.suspect) in forward


def _forward_of(suspect: Suspect) -> str | None:
    try:
        return forward_name(suspect.call)
    except NameFormatError:
        return suspect.call


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
