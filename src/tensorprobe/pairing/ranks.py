"""Pair the ranks and steps of two dumps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensorprobe.store import Dump, RankDump
from tensorprobe.store.locate import place_of

__all__ = ["PartPair", "pair_parts"]


class PartPair(NamedTuple):
    """The dumps of one rank and step of both runs."""

    candidate: RankDump
    reference: RankDump


def pair_parts(candidate: Dump, reference: Dump) -> tuple[list[PartPair], list[str]]:
    """Pair the ranks of two dumps by number; what has no partner, or cannot be opened, is named.

    A single part on each side is a pair whatever its rank and step: it was meant, unless others
    could not be opened.
    """
    ours, theirs = _distinct(candidate.parts), _distinct(reference.parts)
    unopened = (*candidate.unopened, *reference.unopened)
    if len(candidate.parts) == len(reference.parts) == 1 and not unopened:
        return [PartPair(candidate.parts[0], reference.parts[0])], []
    drops_step = len(candidate.steps) == len(reference.steps) == 1
    our_lost, their_lost = _Unopened(candidate, drops_step), _Unopened(reference, drops_step)
    pairs = []
    problems = []
    waiting = {_key(part, position, drops_step): part for position, part in theirs}
    for position, part in ours:
        partner = waiting.pop(_key(part, position, drops_step), None)
        if partner is None:
            why = "is not in the reference; it was not compared"
            problems.append(f"{part.label} {their_lost.explain(part) or why}")
        else:
            pairs.append(PartPair(part, partner))
    for part in waiting.values():
        problems.append(f"{part.label} {our_lost.explain(part) or 'is not in the candidate'}")
    return pairs, [*our_lost.unexplained(), *their_lost.unexplained(), *problems]


class _Unopened:
    """What of one run could not be opened: told once, where its partner is missed if it is."""

    def __init__(self, dump: Dump, drops_step: bool) -> None:
        self._drops_step = drops_step
        self._gaps = {gap: place_of(gap) for gap in dump.unopened}

    def explain(self, part: RankDump) -> str | None:
        """Say why the other run's part has no partner here; None if nobody knows."""
        for gap, place in self._gaps.items():
            is_step = self._drops_step or place.step == part.info.step
            if is_step and place.rank == part.info.rank:
                del self._gaps[gap]
                return f"was not compared: {gap}"
        return None

    def unexplained(self) -> Iterator[str]:
        """Yield a line for whatever is left."""
        return map(str, self._gaps)


def _distinct(parts: Sequence[RankDump]) -> list[tuple[int, RankDump]]:
    """Number the parts that have no rank: process ids differ from run to run."""
    numbered = []
    count: dict[tuple[Any, ...], int] = {}
    for part in parts:
        group = (part.info.step, part.info.level == "debug")
        position = count.get(group, 0)
        if part.info.rank is None:
            count[group] = position + 1
        numbered.append((position, part))
    return numbered


def _key(part: RankDump, position: int, drops_step: bool) -> tuple[Any, ...]:
    info = part.info
    place = ("rank", info.rank) if info.rank is not None else ("position", position)
    return (None if drops_step else info.step, info.level == "debug", *place)
