"""Doubts that are settled: how far off results were which noise has explained.

The layers of a model make the same calls again and again, each of them as far off as the one
before. What is no further off than one that was explained needs no runs of its own. A kernel that
errs alike for other inputs is found out by the first of its calls.
"""

from __future__ import annotations

import torch

from tensorprobe.precheck.measure import OutputNumbers

__all__ = ["SettledDoubts"]

# Where one layer's result is so far off, that of another may be a little further.
_ROOM = 1.5


class SettledDoubts:
    """Remembers, for each result of each operator, how far off it was when noise explained it."""

    def __init__(self) -> None:
        self._explained: dict[tuple[str, str, torch.dtype, int], tuple[float, float]] = {}

    def explain(
        self, operator: str, place: str, dtype: torch.dtype, length: int, numbers: OutputNumbers
    ) -> bool:
        """Whether a result is no further off than others that were explained.

        Args:
            operator: its name.
            place: which result it is.
            dtype: of the result.
            length: how many numbers were added up for one element.
            numbers: how far off it is.
        """
        known = self._explained.get((operator, place, dtype, length))
        if known is None or numbers.distance is None:
            return False
        return numbers.distance <= _ROOM * known[0] and numbers.worst <= _ROOM * known[1]

    def add(
        self, operator: str, place: str, dtype: torch.dtype, length: int, numbers: OutputNumbers
    ) -> None:
        """Remember a result that noise has explained, if it is not known by `explain` itself."""
        if numbers.distance is not None:
            key = operator, place, dtype, length
            known = self._explained.get(key, (0.0, 0.0))
            self._explained[key] = max(known[0], numbers.distance), max(known[1], numbers.worst)
