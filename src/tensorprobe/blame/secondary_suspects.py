"""Leave out secondary suspects: they show the culprit's fault once more, or it may explain them.

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

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.blame.ranks import RankSuspect
from tensorprobe.errors import NameFormatError
from tensorprobe.pairing.run_order import forward_name
from tensorprobe.rounding.distance import is_float

__all__ = ["drop_secondary_suspects"]


def drop_secondary_suspects(ordered: Sequence[RankSuspect]) -> list[RankSuspect]:
    """Return the suspects without those that repeat the first one, or that it may explain."""
    if not ordered:
        return []
    first = ordered[0]
    around, results = _modules_around(first), _results(first)
    first_forward = _forward_of(first)
    kept = [first]
    for entry in ordered[1:]:
        repeats_it = entry.analysis is first.analysis and (
            entry.suspect.call in around
            or _is_way_back(entry, {first_forward, *around})
            or not results.isdisjoint(_results(entry))
            or first.suspect.shows_again(entry.suspect, first.analysis.context)
        )
        if not repeats_it and not entry.suspect.may_be_victim(entry.analysis.context):
            kept.append(entry)
    return kept


def _results(entry: RankSuspect) -> set[StatisticsKey]:
    """Return what identifies the results of a suspect's call: calls may share an autograd node."""
    values = entry.suspect.results(entry.analysis.context)
    keys = (statistics_key(value) for value in values if value is not None and is_float(value))
    return {key for key in keys if key is not None}


def _is_way_back(entry: RankSuspect, forward: Collection[str | None]) -> bool:
    """Whether a suspect is a gradient of one of these forward calls."""
    return entry.suspect.phase == "backward" and _forward_of(entry) in forward


def _forward_of(entry: RankSuspect) -> str | None:
    try:
        return forward_name(entry.suspect.call)
    except NameFormatError:
        return entry.suspect.call


def _modules_around(entry: RankSuspect) -> set[str]:
    part = entry.suspect.part(entry.analysis.context)
    found: set[str] = set()
    name = part.parent(entry.suspect.call)
    while name is not None and name not in found:
        found.add(name)
        name = part.parent(name)
    return found
