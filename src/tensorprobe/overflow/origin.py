"""Which call was the first to make a value that is not finite, over all ranks.

    each rank: its first calls with finite inputs and other outputs
          ─► a collective whose other ranks brought such a value only passed it on
          ─► the earliest step, then the fewest calls before it

Statistics are enough. Ranks have no common clock: the one with the fewest calls before its first
such value counts as the first, and all are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.names import ApiCall, is_parameter_gradients, parse_call
from tensorprobe.overflow.select import CallExtents, extents_of, is_striking, range_text
from tensorprobe.overflow_rule import is_nonfinite
from tensorprobe.store.dump import RankDump

__all__ = ["Origin", "find_origins"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The first value of one rank that is not finite.

    Attributes:
        part: the step and rank, `step0/rank1`.
        step: the step; None where the tool kept none.
        name: the call.
        place: how many recorded calls came before it in this step.
        made: whether the call made it; if not, it was given to the call.
        inputs: the range of what went in.
        outputs: the range of what came out.
    """

    part: str
    step: int | None
    name: str
    place: int
    made: bool
    inputs: str
    outputs: str


def find_origins(parts: Sequence[RankDump]) -> list[Origin]:
    """Return the first value that is not finite of each rank, the origin of all first."""
    histories = [_History(part) for part in parts]
    found = []
    for history in histories:
        others = [
            other.given_collectives
            for other in histories
            if other is not history and other.part.info.step == history.part.info.step
        ]
        origin = history.origin(frozenset().union(*others))
        if origin is not None:
            found.append(origin)
    return sorted(found, key=lambda o: (o.step is None, o.step or 0, not o.made, o.place))


class _History:
    """What of one rank and step bears on the origin."""

    def __init__(self, part: RankDump) -> None:
        self.part = part
        self._makers: list[tuple[int, CallExtents]] = []
        self._first_given: tuple[int, CallExtents] | None = None
        self._gradients: tuple[int, CallExtents] | None = None
        given: set[str] = set()
        for place, extents in self._nonfinite():
            if is_parameter_gradients(extents.name):
                self._gradients = self._gradients or (place, extents)
            elif extents.is_given_nonfinite:
                self._first_given = self._first_given or (place, extents)
                if _is_collective(extents.name):
                    given.add(extents.name)
            elif extents.kind == "nonfinite":
                self._makers.append((place, extents))
        # Collectives to which this rank brought something that is not finite.
        self.given_collectives = frozenset(given)

    def _nonfinite(self) -> Iterator[tuple[int, CallExtents]]:
        for place, call in enumerate(self.part.read_leaves()):
            if not is_striking(call):
                continue
            extents = extents_of(call)
            if any(map(is_nonfinite, (*extents.inputs, *extents.outputs))):
                yield place, extents

    def origin(self, brought: frozenset[str]) -> Origin | None:
        """Return this rank's first; `brought` are the collectives that others spoilt."""
        for place, extents in self._makers:
            if extents.name not in brought:
                return self._as_origin(place, extents, made=True)
        # Its place in the dump is not when it came, so it counts only where there is no other.
        if self._gradients is not None and self._first_given is None and not self._makers:
            return self._as_origin(*self._gradients, made=True)
        first = self._first_given or (self._makers[0] if self._makers else None)
        return None if first is None else self._as_origin(*first, made=False)

    def _as_origin(self, place: int, extents: CallExtents, *, made: bool) -> Origin:
        return Origin(
            self.part.label,
            self.part.info.step,
            extents.name,
            place,
            made,
            range_text(extents.inputs),
            range_text(extents.outputs),
        )


def _is_collective(name: str) -> bool:
    call = parse_call(name)
    return isinstance(call, ApiCall) and call.api_type == "Distributed"
