"""Match the calls of two dumps, and the values of matched calls.

    exact    by name; a mapping file names other partners for single values
    fuzzy    in the order of the run; only the call number may differ

A pair of values has the same place in its call, the same shape, and dtypes that may be compared.
Calls and values without a partner stay in the result, and a note says what comes nearest.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tensorprobe.names import without_number
from tensorprobe.pairing.gradient_order import (
    OTHER_GRADIENTS,
    SAME_PLACES,
    gradient_places,
    recorder_of_nodes,
)
from tensorprobe.pairing.partners import pair_by_name, pair_in_order
from tensorprobe.pairing.value_names import row_name
from tensorprobe.records import Gap
from tensorprobe.store import RankDump
from tensorprobe.store.leaves import CallLeaves, Leaf

__all__ = ["MatchedCall", "Matcher", "Pair", "PairAlike", "UnmatchedNote"]

# Values of these dtypes are worth comparing with each other: one run may be of lower precision.
_COMPARABLE_DTYPES = frozenset(("torch.float16", "torch.float32", "torch.bfloat16"))
_LISTED_NOTES = 10_000
_NEAREST = 3
# A search looks at every name that starts alike: more of them would take longer than comparing.
_MOST_SEARCHES = 100
_MOST_SUGGESTIONS = 1_000
_NO_CALL = "the reference has no such call"
_NO_CANDIDATE_CALL = "the candidate has no such call"
# Of fuzzy matching: the other run may well have a call of that name, next to which another stands.
_NO_PLACE = "no call of the {} stands at its place"
_NO_VALUE = "the call has no such value"
_NOT_THERE = "the mapping names it, but the dump does not have it"


class Pair(NamedTuple):
    """A value of the candidate and its partner, which may be of another call."""

    candidate: Leaf
    reference: Leaf | None
    reference_call: str
    is_transposed: bool = False


class MatchedCall(NamedTuple):
    """One call of the candidate with its values' partners."""

    name: str
    pairs: list[Pair]


# Pairs the values of two calls that look alike, or returns None: compiled code may do that.
PairAlike: TypeAlias = Callable[[list[Leaf], list[Leaf], str], "list[Pair] | None"]


class UnmatchedNote(NamedTuple):
    """Something that only one run has: whose, what, and why it has no partner."""

    side: str
    name: str
    why: str


class Matcher:
    """Walks the candidate's calls and finds their partners.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        fuzzy: whether calls may differ in their number.
        mapping: names of values of the candidate, and of their partners in the reference.
        pair_alike: what pairs the values of calls that look alike; None: this module does.

    Attributes:
        notes: what has no partner, up to a limit.
        unlisted: how many more there are.
        reference_only: how many calls and values only the reference has.
        unmapped: what the mapping names and a dump does not hold.
    """

    def __init__(
        self,
        candidate: RankDump,
        reference: RankDump,
        *,
        fuzzy: bool = False,
        mapping: Mapping[str, str] | None = None,
        pair_alike: PairAlike | None = None,
    ) -> None:
        self.notes: list[UnmatchedNote] = []
        self.unlisted = 0
        self.reference_only = 0
        self.unmapped: list[Gap] = []
        self._candidate, self._reference = candidate, reference
        self._is_fuzzy = fuzzy
        find = pair_in_order if fuzzy else pair_by_name
        self._partners = find(candidate.names, reference.names)
        self._mapping = mapping or {}
        self._mapped: dict[str, tuple[str, Leaf]] = {}
        self._waiting: dict[str, CallLeaves] = {}
        self._used: set[str] = set()
        self._named: set[str] = set()
        self._seen: set[str] = set()
        self._reader = reference.read_leaves()
        self._by_kind: dict[str, dict[str, list[str]]] = {}
        self._searches = 0
        self._of_node = recorder_of_nodes(candidate.info, reference.info)
        self._pair_alike = _pair_alike if pair_alike is None else pair_alike

    def calls(self) -> Iterator[MatchedCall]:
        """Yield every call of the candidate, in its order; then the notes are complete."""
        if self._mapping:
            self._read_mapped()
        for call in self._candidate.read_leaves():
            partner = self._partner_of(call.name)
            yield MatchedCall(call.name, self._pairs(call, partner))
        why = _NO_PLACE.format("candidate") if self._is_fuzzy else _NO_CANDIDATE_CALL
        for name in self._reference.names:
            if name not in self._used and name not in self._named:
                self._note("reference", name, why)
        for ours, theirs in self._mapping.items():
            if ours not in self._seen:
                self._note("candidate", ours, _NOT_THERE)
                self.unmapped.append(_unmapped(self._candidate, ours))
            if theirs not in self._mapped:
                self._note("reference", theirs, _NOT_THERE)
                self.unmapped.append(_unmapped(self._reference, theirs))

    def _read_mapped(self) -> None:
        """Keep the reference's values that a mapping names, whatever call they are of."""
        wanted = set(self._mapping.values())
        for call in self._reference.read_leaves():
            for leaf in call.leaves:
                name = row_name(call.name, leaf)
                if name in wanted:
                    self._mapped[name] = (call.name, leaf)

    def _partner_of(self, name: str) -> CallLeaves | None:
        wanted = self._partners.get(name)
        if wanted is None or wanted in self._used:
            return None
        # Both runs are mostly in the same order: what is wanted comes next, and little waits.
        while wanted not in self._waiting:
            read = next(self._reader, None)
            if read is None:
                return None  # its record is damaged
            self._waiting[read.name] = read
        self._used.add(wanted)
        return self._waiting.pop(wanted)

    def _pairs(self, call: CallLeaves, partner: CallLeaves | None) -> list[Pair]:
        if partner is not None and not self._mapping and self._of_node is None:
            pairs = self._pair_alike(call.leaves, partner.leaves, partner.name)
            if pairs is not None:
                return pairs
        return self._unlike_pairs(call, partner)

    def _unlike_pairs(self, call: CallLeaves, partner: CallLeaves | None) -> list[Pair]:
        others = {} if partner is None else {leaf.place: leaf for leaf in partner.leaves}
        places = SAME_PLACES
        if partner is not None:
            places = gradient_places(call, partner, self._of_node)
        pairs = []
        has_any = False
        for leaf in call.leaves:
            found = places.partner_of(leaf.place)
            place, is_transposed = found or (leaf.place, False)
            other = None if found is None else others.pop(place, None)
            if self._mapping:
                name = row_name(call.name, leaf)
                self._seen.add(name)
                mapped = self._mapped.get(self._mapping.get(name, ""))
                if mapped is not None:
                    self._named.add(mapped[0])
                    pairs.append(Pair(leaf, mapped[1], mapped[0]))
                    continue
            if partner is not None and other is not None:
                if is_transposed or _fit(leaf, other):
                    pairs.append(Pair(leaf, other, partner.name, is_transposed))
                    has_any = True
                    continue
                self._note("candidate", row_name(call.name, leaf), _mismatch(leaf, other))
            elif partner is not None:
                why = OTHER_GRADIENTS if places.is_gradient_apart(leaf.place) else _NO_VALUE
                self._note("candidate", row_name(call.name, leaf), why)
            pairs.append(Pair(leaf, None, ""))
        if partner is None:
            if not pairs or any(pair.reference is None for pair in pairs):
                why = _NO_PLACE.format("reference") if self._is_fuzzy else _NO_CALL
                self._note("candidate", call.name, why)
        elif has_any:
            for leaf in others.values():
                why = OTHER_GRADIENTS if places.is_gradient_apart(leaf.place) else _NO_VALUE
                self._note("reference", row_name(partner.name, leaf), why)
        return pairs

    def _note(self, side: str, name: str, why: str) -> None:
        self.reference_only += side == "reference"
        if len(self.notes) < _LISTED_NOTES:
            self.notes.append(UnmatchedNote(side, name, why))
        else:
            self.unlisted += 1

    def reference_only_before(self, name: str) -> str | None:
        """Return the last call that only the reference made before the partner of this call."""
        partner = self._partners.get(name)
        last = None
        for other in self._reference.names:
            if other == partner:
                return last
            if other not in self._used and other not in self._named:
                last = other
        return None

    def describe(self, note: UnmatchedNote) -> str:
        """Return a note as a sentence, with what comes nearest in the other run."""
        near = self.nearest(note)
        return f"{note.name}: {note.why}" + (f"; nearest is {near[0]}" if near else "")

    def nearest(self, note: UnmatchedNote) -> tuple[str, ...]:
        """Return the names in the other run that come nearest to an unmatched call's."""
        if note.why not in (_NO_CALL, _NO_CANDIDATE_CALL):
            return ()
        other = self._reference if note.side == "candidate" else self._candidate
        if note.side not in self._by_kind:
            kinds: dict[str, list[str]] = {}
            for name in other.names:
                kinds.setdefault(without_number(name), []).append(name)
            self._by_kind[note.side] = kinds
        kinds = self._by_kind[note.side]
        found = [name for name in kinds.get(without_number(note.name), ()) if name != note.name]
        if found:
            # The same API or module in another call; the last ones, where this run made more.
            return tuple(found[-_NEAREST:])
        self._searches += 1
        if self._searches > _MOST_SEARCHES:
            return ()
        start, own = _split_kind(without_number(note.name))
        similar: dict[str, str] = {}
        for kind in kinds:
            other_start, other_own = _split_kind(kind)
            if other_start == start:
                similar.setdefault(other_own, kind)
                if len(similar) == _MOST_SUGGESTIONS:
                    break
        near = difflib.get_close_matches(own, similar, n=_NEAREST)
        return tuple(kinds[similar[name]][0] for name in near)


def _unmapped(part: RankDump, name: str) -> Gap:
    if name in part:
        why = f"is a whole call; name its values, such as {name}.input.0"
    else:
        why = "is not there"
    return Gap(part.path, f"the mapping names {name}, which {why}")


def _split_kind(kind: str) -> tuple[tuple[str, str], str]:
    """Split what calls of one kind have in common into what many kinds share and what is its own.

    >>> _split_kind("Functional.conv2d.forward")
    (('Functional', 'forward'), 'conv2d')
    """
    first, _, rest = kind.partition(".")
    own, _, last = rest.rpartition(".")
    return (first, last), own


# The constructor that a NamedTuple writes in Python takes twice as long.
_make_pair: Callable[[tuple[Any, ...]], Pair] = partial(tuple.__new__, Pair)


def _pair_alike(ours: list[Leaf], theirs: list[Leaf], call: str) -> list[Pair] | None:
    if len(ours) != len(theirs) or not all(map(_are_alike, ours, theirs)):
        return None
    return [_make_pair((*both, call, False)) for both in zip(ours, theirs, strict=True)]


def _are_alike(ours: Leaf, theirs: Leaf) -> bool:
    """Whether two values have the same place, dtype and shape."""
    return ours[0] == theirs[0] and ours[2] == theirs[2] and ours[3] == theirs[3]


def _fit(candidate: Leaf, reference: Leaf) -> bool:
    if candidate.shape != reference.shape:
        return False
    ours, theirs = candidate.dtype, reference.dtype
    return ours == theirs or (ours in _COMPARABLE_DTYPES and theirs in _COMPARABLE_DTYPES)


def _mismatch(candidate: Leaf, reference: Leaf) -> str:
    if candidate.shape != reference.shape:
        return f"shape {list(candidate.shape)} against {list(reference.shape)}"
    return f"{candidate.dtype} against {reference.dtype}"
