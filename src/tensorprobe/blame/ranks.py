"""Decide between the suspects of many ranks: the earliest, and never one that only received.

A collective hands a bad value of one rank to all others. On those its inputs agree and its result
does not, which looks like a fault of the collective; it is one only if no rank sent a bad value.
Ranks run on their own between collectives, so how many a rank has passed is the common clock; what
only two ranks exchange does not count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorprobe.blame.analyse import RankAnalysis
from tensorprobe.blame.context import Context
from tensorprobe.blame.rules.evidence import Evidence
from tensorprobe.dtypes import roundoff_of
from tensorprobe.operations.spelling import operation_of
from tensorprobe.rounding import tolerances

__all__ = ["RankSuspect", "order_suspects"]

_BETWEEN_TWO = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv"))


# When (collectives passed, place in the run), the rank's number in the list, and who.
_Entry = tuple[tuple[int, int], int, Evidence]


@dataclass(frozen=True, slots=True)
class RankSuspect:
    """A suspect and the rank's analysis it is from; `received` are ranks that got its value."""

    analysis: RankAnalysis
    suspect: Evidence
    received: tuple[int, ...] = ()


def order_suspects(analyses: Sequence[RankAnalysis]) -> list[RankSuspect]:
    """Return the suspects of all ranks, the earliest of the run first."""
    contexts = [analysis.context for analysis in analyses]
    places = [_places(context) for context in contexts]
    clocks = [_clock(*both) for both in zip(contexts, places, strict=True)]
    entries: list[_Entry] = []
    for index, analysis in enumerate(analyses):
        for suspect in analysis.suspects:
            if _is_collective(suspect.call) and _was_sent(suspect, index, analyses, clocks):
                continue
            place = places[index][suspect.position]
            entries.append(((clocks[index][suspect.position], place), index, suspect))
    entries.sort(key=lambda entry: entry[0])
    entries = _once(entries)
    received = [
        (index, rank, _last_received(context, clocks[index]))
        for index, context in enumerate(contexts)
        if (rank := context.candidate.part.info.rank) is not None
    ]
    return [
        RankSuspect(
            analyses[index],
            suspect,
            tuple(rank for other, rank, last in received if other != index and last >= clock[0]),
        )
        for clock, index, suspect in entries
    ]


def _once(entries: Sequence[_Entry]) -> list[_Entry]:
    """Leave each collective of all ranks on the first of them: it is one event, and one fault."""
    seen: set[tuple[int, str]] = set()
    kept = []
    for entry in entries:
        (clock, _), _, suspect = entry
        if _is_for_all(suspect.call):
            if (clock, operation_of(suspect.call)) in seen:
                continue
            seen.add((clock, operation_of(suspect.call)))
        kept.append(entry)
    return kept


def _is_collective(call: str) -> bool:
    return call.startswith("Distributed.")


def _places(context: Context) -> list[int]:
    """Return where in the whole run of a rank each call stands that was looked at."""
    if not context.left_out:
        return list(range(len(context.pairs)))
    order = {name: place for place, name in enumerate(context.candidate.part.names)}
    places, last = [], 0
    for pair in context.pairs:
        # What only the reference has stands behind the call before it.
        last = order.get(pair.name, last) if pair.candidate is not None else last
        places.append(last)
    return places


def _clock(context: Context, places: Sequence[int]) -> list[int]:
    """Return how many collectives a rank has passed at each position, and at the end."""
    names = context.candidate.part.names
    if not context.left_out:
        names = [pair.name for pair in context.pairs]
    counts = [0, *itertools.accumulate(map(_is_for_all, names))]
    return [*(counts[place] for place in places), counts[-1]]


def _is_for_all(call: str) -> bool:
    return _is_collective(call) and operation_of(call) not in _BETWEEN_TWO


def _was_sent(
    suspect: Evidence,
    receiver: int,
    analyses: Sequence[RankAnalysis],
    clocks: Sequence[Sequence[int]],
) -> bool:
    """Whether some rank went into a collective with a value that already differed."""
    if len(analyses) == 1:
        return False
    passed = clocks[receiver][suspect.position]
    for index, analysis in enumerate(analyses):
        for other in analysis.suspects:
            is_before = index != receiver or other.position < suspect.position
            is_own = not _is_collective(other.call)
            if is_own and is_before and clocks[index][other.position] <= passed:
                return True
        if any(
            _sends_bad(analysis.context, name) for name in _sending(suspect.call, analysis.context)
        ):
            return True
    return False


def _sending(call: str, context: Context) -> list[str]:
    """Return a rank's calls that send what a call on another rank receives."""
    if operation_of(call) not in _BETWEEN_TWO:
        return [call]
    return [
        pair.name
        for pair in context.pairs
        if _is_collective(pair.name) and operation_of(pair.name) in _BETWEEN_TWO
    ]


def _sends_bad(context: Context, call: str) -> bool:
    agreement = context.agreements.get(call)
    return agreement is not None and any(
        _is_off(d.value, d.candidate.dtype) for d in agreement.inputs
    )


def _is_off(distance: float, dtype: str) -> bool:
    return math.isnan(distance) or distance > tolerances.SAME_SENT * roundoff_of(dtype)


def _last_received(context: Context, clock: Sequence[int]) -> int:
    """Return when a rank last got a bad value out of a collective; -1: never."""
    for pair in reversed(context.pairs):
        if _is_collective(pair.name):
            outputs = context.agreements[pair.name].outputs
            if any(_is_off(d.value, d.candidate.dtype) for d in outputs):
                return clock[pair.position]
    return -1
