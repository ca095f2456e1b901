"""Doubts that are settled: how far off results were which noise has explained.

The layers of a model make the same calls again and again, each of them as far off as the one
before. What is no further off than one that was explained needs no runs of its own. A kernel that
errs alike for other inputs is found out by the first of its calls.

It must be such a call: with numbers about as large, in and out. A sum of what cancels is far off
because it is small beside what it adds up; that is no reason for a sum of anything else to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tensorprobe.precheck.measure import OutputNumbers
from tensorprobe.rounding import tolerances

__all__ = ["SettledDoubts"]

# A model has so many layers that are each like no other; more are not remembered.
_MOST = 64

_Kind = tuple[object, ...]


class _Explained(NamedTuple):
    """A result that noise has explained: how large the call's numbers were, and how far off it."""

    sizes: tuple[float, ...]
    distance: float
    worst: float


class SettledDoubts:
    """Remembers, for each result of each operator, how far off it was when noise explained it."""

    def __init__(self) -> None:
        self._explained: dict[_Kind, list[_Explained]] = {}

    def explain(
        self, kind: _Kind, numbers: OutputNumbers, find_sizes: Callable[[], tuple[float, ...]]
    ) -> bool:
        """Whether a result is no further off than one of another such call that was explained.

        Args:
            kind: the operator and its settings, which result it is, its dtype, and how many numbers
                were added up for one element.
            numbers: how far off it is.
            find_sizes: returns how large the call's numbers are, of each input and of the result;
                asked only when needed.
        """
        known = self._explained.get(kind)
        if known is None or numbers.distance is None:
            return False
        sizes = find_sizes()
        return any(
            numbers.distance <= tolerances.SETTLED_ROOM * one.distance
            and numbers.worst <= tolerances.SETTLED_ROOM * one.worst
            and _are_alike(sizes, one.sizes)
            for one in known
        )

    def add(self, kind: _Kind, numbers: OutputNumbers, sizes: tuple[float, ...]) -> None:
        """Remember a result that noise has explained, if it is not known by `explain` itself."""
        known = self._explained.setdefault(kind, [])
        if numbers.distance is not None and len(known) < _MOST:
            known.append(_Explained(sizes, numbers.distance, numbers.worst))


def _are_alike(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(
        one == other
        or (one <= tolerances.SETTLED_ALIKE * other and other <= tolerances.SETTLED_ALIKE * one)
        for one, other in zip(ours, theirs, strict=True)
    )
