"""Pair the calls of two runs, in the order of the run, and the values of paired calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tensorprobe.names import ApiCall, ModuleCall, parse_call
from tensorprobe.operations.calls import is_exact_call
from tensorprobe.pairing.gradient_order import (
    SAME_PLACES,
    OfNode,
    Places,
    gradient_places,
    recorder_of_nodes,
)
from tensorprobe.pairing.partners import pair_in_order
from tensorprobe.pairing.run_order import Phase, in_run_order, phase_of
from tensorprobe.pairing.wrappers import is_call_of_wrapper
from tensorprobe.records import CallRecord, Leaf, Value, flat_tensors
from tensorprobe.store import RankDump
from tensorprobe.store.leaves import leaves_of

__all__ = ["CallPair", "ValuePair", "kinds_of_both", "pair_calls", "pair_records", "stretch_around"]


# What the hooks of msprobe call, and what it sees of torch's own `backward()`.
_MADE_TO_WATCH = ("Tensor.view_as.", "Torch.ones_like.")
# Functions that leave all elements as they are, in their order: not every tool records them. Those
# of the second line give them another shape, which what comes next may compute otherwise with.
_SAME_TENSOR = frozenset(("clone", "contiguous"))
_SAME_ELEMENTS = frozenset(
    ("flatten", "reshape", "reshape_as", "squeeze", "unflatten", "unsqueeze", "view", "view_as")
)


class Run(Protocol):
    """One run: its dump, and its calls by name, in the order of the dump."""

    part: RankDump
    calls: Mapping[str, CallRecord]


class ValuePair(NamedTuple):
    """A value of a call and its partner; None where only one side recorded such a value.

    Attributes:
        place: `input.0`, `output.1`, `parameters.weight`: the candidate's, where it has the value.
        candidate: the value of the run under test.
        reference: that of the trusted run.
        is_transposed: whether the trusted run has it transposed.
        is_apart: whether the two tools record other gradients at such places, so that none of one
            side is one of the other.
    """

    place: str
    candidate: Leaf | None
    reference: Leaf | None
    is_transposed: bool = False
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class CallPair:
    """Calls of both runs that compute the same, at one place in the order of the run.

    Mostly one call of each; a side that has none is empty. Several on one side do what one fused
    call does on the other.

    Attributes:
        position: the place in the order of the run.
        candidates: the calls of the run under test.
        references: those of the trusted run.
        places: where the values of the one stand in the other.
    """

    position: int
    candidates: tuple[CallRecord, ...]
    references: tuple[CallRecord, ...]
    places: Places = SAME_PLACES

    @property
    def candidate(self) -> CallRecord | None:
        """The candidate's call, or the first of several."""
        return self.candidates[0] if self.candidates else None

    @property
    def reference(self) -> CallRecord | None:
        """The reference's call, or the first of several."""
        return self.references[0] if self.references else None

    @property
    def name(self) -> str:
        """The name that the call has in the candidate, or in the reference if only that has it."""
        return (self.candidates or self.references)[0].name

    @property
    def phase(self) -> Phase:
        """Whether the call belongs to the forward or the backward pass."""
        return phase_of(self.name)

    @property
    def is_exact(self) -> bool:
        """Whether it only moves, picks or compares numbers, so that no rounding excuses it."""
        calls = (*self.candidates, *self.references)
        return self.phase == "forward" and all(map(is_exact_call, calls))

    def values(self) -> Iterator[ValuePair]:
        """Yield every value of both calls once: the candidate's, then what only the other has.

        Of several calls on a side, those of the first are paired.
        """
        mine, other = self.candidate, self.reference
        ours = [] if mine is None else list(mine.leaves(with_empty=True))
        theirs = {} if other is None else {_place(x): x for x in other.leaves(with_empty=True)}
        places = self.places
        for leaf in ours:
            place = _place(leaf)
            found = places.partner_of(place)
            if found is None:
                yield ValuePair(place, leaf, None, is_apart=places.is_gradient_apart(place))
            else:
                yield ValuePair(place, leaf, theirs.pop(found[0], None), found[1])
        for place, leaf in theirs.items():
            yield ValuePair(place, None, leaf, is_apart=places.is_gradient_apart(place))

    def aligned_reference(self) -> CallRecord | None:
        """Return the reference's call with each gradient at the place that the candidate has it at.

        What has no partner there, or lies transposed, is None: it is no result to hold the
        candidate's against.
        """
        mine, other = self.candidate, self.reference
        if mine is None or other is None or self.places == SAME_PLACES:
            return other
        outputs: list[Value] = [None] * len(mine.outputs or ())
        for pair in self.values():
            if pair.candidate is None or pair.reference is None or pair.is_transposed:
                continue
            if pair.candidate.section == "output" and len(pair.candidate.path) == 1:
                outputs[int(pair.candidate.path[0])] = pair.reference.value
        return replace(other, outputs=tuple(outputs))


def pair_records(
    position: int, mine: CallRecord | None, other: CallRecord | None, of_node: OfNode | None
) -> CallPair:
    """Return a pair of two calls, or of one that only one side has."""
    ours = () if mine is None else (mine,)
    theirs = () if other is None else (other,)
    return CallPair(position, ours, theirs, _places_of(mine, other, of_node))


def _places_of(mine: CallRecord | None, other: CallRecord | None, of_node: OfNode | None) -> Places:
    if of_node is None or mine is None or other is None or phase_of(mine.name) == "forward":
        return SAME_PLACES
    return gradient_places(leaves_of(mine), leaves_of(other), of_node)


def pair_calls(candidate: Run, reference: Run) -> list[CallPair]:
    """Return every call of both runs in the order of the candidate's.

    Where one run has calls that the other has not, call numbers behind them are shifted, and calls
    are paired by their order. A call that only the reference has stands after the one that it
    follows there. What the tools and wrappers add of their own, and only one run has, is left out.
    """
    ours, theirs = in_run_order(candidate.calls), in_run_order(reference.calls)
    partners = pair_in_order(ours, theirs)
    of_node = recorder_of_nodes(candidate.part.info, reference.part.info)
    unrecorded = _SAME_TENSOR
    if of_node is not None and _have_equal_shapes(candidate, reference, partners):
        unrecorded |= _SAME_ELEMENTS
    made = (
        both
        for both in _merge(ours, theirs, partners)
        if not _adds_nothing(*both, of_node=of_node, unrecorded=unrecorded)
    )
    return [
        pair_records(
            position,
            None if name is None else candidate.calls[name],
            None if other is None else reference.calls[other],
            of_node,
        )
        for position, (name, other) in enumerate(made)
    ]


def _have_equal_shapes(candidate: Run, reference: Run, partners: Mapping[str, str]) -> bool:
    """Whether all forward calls of both runs are given and make tensors of the same shapes."""
    return all(
        _shapes_of(candidate.calls[name]) == _shapes_of(reference.calls[other])
        for name, other in partners.items()
        if phase_of(name) == "forward" and isinstance(parse_call(name), ApiCall)
    )


def _shapes_of(call: CallRecord) -> list[tuple[int, ...]]:
    values = (*flat_tensors(call.inputs), *flat_tensors(call.outputs))
    return [value.shape for value in values if value is not None]


def _adds_nothing(
    mine: str | None, other: str | None, *, of_node: OfNode | None, unrecorded: frozenset[str]
) -> bool:
    """Whether a call that one run alone has is no computation of its own.

    That is a wrapper's; and, of two tools, what one calls to watch, and what only one records: the
    model as a whole, and `unrecorded` functions, which leave all elements as they are.
    """
    if mine is not None and other is not None:
        return False
    name = str(other if mine is None else mine)
    if of_node is None:
        return is_call_of_wrapper(name)
    is_watched = of_node == ("reference" if mine is None else "candidate")
    if is_watched and name.startswith(_MADE_TO_WATCH):
        return True
    call = parse_call(name)
    if isinstance(call, ApiCall):
        return call.api_name in unrecorded
    return is_call_of_wrapper(name) or (isinstance(call, ModuleCall) and not call.path)


def _merge(
    ours: Sequence[str], theirs: Sequence[str], partners: Mapping[str, str]
) -> Iterator[tuple[str | None, str | None]]:
    """Yield the pairs in the order of the candidate, what only the reference has in its place."""
    paired = set(partners.values())
    before: dict[str, list[str]] = {}
    waiting: list[str] = []
    for other in theirs:
        if other in paired:
            before[other], waiting = waiting, []
        else:
            waiting.append(other)
    for name in ours:
        partner = partners.get(name)
        if partner is not None:
            yield from ((None, other) for other in before[partner])
        yield name, partner
    yield from ((None, other) for other in waiting)


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


def _place(leaf: Leaf) -> str:
    return ".".join((leaf.section, *leaf.path)) if leaf.section else ".".join(leaf.path)
