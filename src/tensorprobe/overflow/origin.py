"""Which call was the first to make a value that is not finite, over all ranks.

    each rank: its first calls with finite inputs and other outputs
          ─► a collective to which another rank brought such a value only passed it on
          ─► what was made before what was only given: a mask of -inf is no origin
          ─► the earliest step; a collective after the calls that other ranks made before it;
             the fewest calls before it

Statistics are enough. Ranks have no common clock but their collectives: else the one with the
fewest calls before its first such value counts as the first, and all are shown.

A dump of overflows alone lacks the collectives that were given such a value. So there a rank that
made one by itself, and did not record a collective, is taken to have brought it to that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorprobe.errors import NameFormatError
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
    ordered = []
    for history in histories:
        others = [other for other in histories if other is not history]
        origin = history.origin(others)
        if origin is not None:
            # Ranks meet in a collective, so this is an order where there is no common clock.
            is_later = any(
                other.is_of_step(history) and other.made_before(origin.name) for other in others
            )
            key = (not origin.made, origin.step is None, origin.step or 0, is_later, origin.place)
            ordered.append((key, origin))
    return [origin for _, origin in sorted(ordered, key=lambda pair: pair[0])]


class _History:
    """What of one rank and step bears on the origin."""

    def __init__(self, part: RankDump) -> None:
        self.part = part
        self._makers: list[tuple[int, CallExtents]] = []
        self._first_given: tuple[int, CallExtents] | None = None
        self._gradients: tuple[int, CallExtents] | None = None
        self._collectives: dict[str, int] = {}
        # Collectives to which this rank brought something that is not finite.
        self._spoilt: set[str] = set()
        for place, extents in self._nonfinite():
            if is_parameter_gradients(extents.name):
                self._gradients = self._gradients or (place, extents)
            elif extents.is_given_nonfinite:
                self._first_given = self._first_given or (place, extents)
                if extents.name in self._collectives:
                    self._spoilt.add(extents.name)
            elif extents.kind == "nonfinite":
                self._makers.append((place, extents))
        # Where the first call stands that made such a value without the other ranks.
        self._first_alone = next(
            (place for place, extents in self._makers if extents.name not in self._collectives),
            None,
        )

    def is_of_step(self, other: _History) -> bool:
        """Whether both are of one step."""
        return self.part.info.step == other.part.info.step

    def made_before(self, collective: str) -> bool:
        """Whether this rank made such a value by itself before a collective that it recorded."""
        place = self._collectives.get(collective)
        return place is not None and self._first_alone is not None and self._first_alone < place

    def _brought(self, collective: str, to: _History) -> bool:
        """Whether this rank brought such a value to a collective of another rank, or may have."""
        if self.is_of_step(to) and collective in self._collectives:
            return collective in self._spoilt
        if self.part.info.task != "overflow_check" or self._first_alone is None:
            return False
        step, its_step = self.part.info.step, to.part.info.step
        is_other_rank = self.part.info.rank != to.part.info.rank
        is_earlier = step is not None and its_step is not None and step < its_step
        return is_other_rank and (is_earlier or self.is_of_step(to))

    def _nonfinite(self) -> Iterator[tuple[int, CallExtents]]:
        for place, call in enumerate(self.part.read_leaves()):
            if _is_collective(call.name):
                self._collectives[call.name] = place
            if not is_striking(call):
                continue
            extents = extents_of(call)
            if any(map(is_nonfinite, (*extents.inputs, *extents.outputs))):
                yield place, extents

    def origin(self, others: Sequence[_History]) -> Origin | None:
        """Return this rank's first; `others` are those of all other ranks and steps."""
        for place, extents in self._makers:
            is_collective = extents.name in self._collectives
            if not is_collective or not any(o._brought(extents.name, self) for o in others):
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
    # Every call is asked, so the quick question comes first.
    if not name.startswith("Distributed."):
        return False
    try:
        call = parse_call(name)
    except NameFormatError:
        return False
    return isinstance(call, ApiCall) and call.api_type == "Distributed"
