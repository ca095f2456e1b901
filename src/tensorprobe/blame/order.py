"""Pair the calls of two runs and put them into the order in which they ran.

Dumps list calls as they were recorded. Parameter gradients stand where their module ran forward,
though they are made in its backward pass: they are moved there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tensorprobe.blame.sides import Side
from tensorprobe.compare.align import align_names
from tensorprobe.errors import NameFormatError
from tensorprobe.names import (
    ApiCall,
    ModuleCall,
    ParameterGradients,
    forward_of,
    is_call_name,
    parse_call,
)
from tensorprobe.records import CallRecord
from tensorprobe.store import RankDump

__all__ = [
    "CallPair",
    "Phase",
    "forward_name",
    "kinds_of_both",
    "open_sides",
    "pair_calls",
    "phase_of",
    "stretch_around",
]

Phase = Literal["forward", "backward"]

# Of a part of a run: the beginning, which tells what it was fed with, and what led up to the part.
_BEGINNING = 50
_LEAD = 200


@dataclass(frozen=True, slots=True)
class CallPair:
    """One call in the order of the run; a side that does not have it is None."""

    position: int
    name: str
    phase: Phase
    candidate: CallRecord | None
    reference: CallRecord | None


@lru_cache(maxsize=1 << 16)
def phase_of(name: str) -> Phase:
    """Return whether a call belongs to the forward or the backward pass.

    >>> phase_of("Module.fc.Linear.parameters_grad")
    'backward'
    """
    try:
        call = parse_call(name)
    except NameFormatError:
        return "forward"
    if isinstance(call, (ApiCall, ModuleCall)):
        return call.direction
    return "backward" if isinstance(call, ParameterGradients) else "forward"


def forward_name(name: str) -> str:
    """Return the name of the forward call that a backward call, or gradients, belong to.

    >>> forward_name("Module.fc.Linear.parameters_grad")
    'Module.fc.Linear.forward.0'
    """
    call = parse_call(name)
    if isinstance(call, ParameterGradients):
        return str(ModuleCall(call.path, call.class_name, "forward", call.number or 0))
    return forward_of(name)


def kinds_of_both(pairs: Sequence[CallPair]) -> set[bool]:
    """Return which kinds of calls both runs recorded at all: modules (True), others (False).

    A run that was captured at level L1 has no modules, one at L0 has nothing else.
    """
    ours = {pair.name.startswith("Module.") for pair in pairs if pair.candidate is not None}
    theirs = {pair.name.startswith("Module.") for pair in pairs if pair.reference is not None}
    return ours & theirs


def stretch_around(position: int, pairs: Sequence[CallPair]) -> list[CallPair]:
    """Return the calls next to each other, around a place, each of which only one run makes."""
    first = last = position
    while first > 0 and _is_alone(pairs[first - 1]):
        first -= 1
    while last + 1 < len(pairs) and _is_alone(pairs[last + 1]):
        last += 1
    return list(pairs[first : last + 1])


def _is_alone(pair: CallPair) -> bool:
    return pair.candidate is None or pair.reference is None


def open_sides(
    candidate: RankDump, reference: RankDump, *, most: int | None, first: str | None
) -> tuple[Side, Side, int]:
    """Read the calls of one rank of both runs.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        most: how many calls are read, in the order of the run; None: all.
        first: the first call of which something differs, where that is known: before it there is
            nothing to be found.

    Returns:
        Both sides, and how many calls were left out.
    """
    if most is None or len(candidate) <= most:
        return Side(candidate), Side(reference), 0
    ours, theirs = (_run_order(filter(is_call_name, part.names)) for part in (candidate, reference))
    partners = {name: name for name in ours} if ours == theirs else align_names(ours, theirs)
    beginning, lead = min(_BEGINNING, most // 4), min(_LEAD, most // 4)
    start = max(0, ours.index(first) - lead) if first is not None and first in candidate else 0
    if start <= beginning:
        start, kept = 0, ours[:most]
    else:
        kept = [*ours[:beginning], *ours[start : start + most - beginning]]
    # A backward call is judged and replayed with its forward call.
    kept += [forward_name(name) for name in kept if phase_of(name) == "backward"]
    wanted = set(kept)
    chosen = [name for name in candidate.names if name in wanted]
    paired = {partners[name] for name in kept if name in partners}
    # What only the reference has stands behind a call that both have.
    only = set(theirs) - set(partners.values())
    others, is_inside = [], start == 0
    for name in reference.names:
        if name in paired:
            is_inside = True
            others.append(name)
        elif name in only:
            if is_inside:
                others.append(name)
        else:
            is_inside = False
    return Side(candidate, chosen), Side(reference, others), len(ours) - len(chosen)


def pair_calls(candidate: Side, reference: Side) -> list[CallPair]:
    """Return every call of both runs in the order of the candidate's.

    Calls are paired by name. Where one run has calls that the other has not, call numbers behind
    them are shifted, and calls are paired by their order instead. A call that only the reference
    has stands after the one that it follows there.
    """
    ours, theirs = _run_order(candidate.calls), _run_order(reference.calls)
    partners = dict(zip(ours, theirs, strict=True)) if ours == theirs else align_names(ours, theirs)
    return [
        CallPair(
            position,
            name if name is not None else str(other),
            phase_of(name if name is not None else str(other)),
            None if name is None else candidate.calls[name],
            None if other is None else reference.calls[other],
        )
        for position, (name, other) in enumerate(_merge(ours, theirs, partners))
    ]


def _run_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the run: parameter gradients after their module's backward."""
    waiting: dict[tuple[str, str], list[str]] = {}
    order = []
    for name in names:
        if ".parameters_grad" in name:
            call = parse_call(name)
            if isinstance(call, ParameterGradients):
                waiting.setdefault((call.path, call.class_name), []).append(name)
                continue
        order.append(name)
    if not waiting:
        return order
    result = []
    for name in order:
        result.append(name)
        if name.startswith("Module."):
            call = parse_call(name)
            if isinstance(call, ModuleCall) and call.direction == "backward":
                result += waiting.pop((call.path, call.class_name), [])
    return result + [name for names in waiting.values() for name in names]


def _merge(
    ours: list[str], theirs: list[str], partners: Mapping[str, str]
) -> Iterator[tuple[str | None, str | None]]:
    """Yield the pairs in the order of the candidate, what only the reference has in its place."""
    paired = set(partners.values())
    waiting = iter(theirs)
    for name in ours:
        partner = partners.get(name)
        if partner is not None:
            for other in waiting:
                if other == partner:
                    break
                if other not in paired:
                    yield None, other
        yield name, partner
    yield from ((None, other) for other in waiting if other not in paired)
