"""Keep the garbage collector as busy as it would be without us.

Python looks for garbage whenever so many objects were made that are still there. The records of a
step are thousands, none of them garbage: a training that made a few hundred objects in a step
would be searched a dozen times, and every few steps as a whole, which takes a tenth of a second.
"""

from __future__ import annotations

import gc

__all__ = ["CollectorPace"]

# Records of a small model are some ten thousand objects; the first threshold is 700 or 2000.
_SLOWER = 16


class CollectorPace:
    """Has the collector wait longer between its searches while it is open."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self._ours: tuple[int, int, int] | None = None

    def open(self) -> None:
        """Start to count our own objects out."""
        if self._before is not None:
            return
        first, *others = self._before = gc.get_threshold()
        # Zero means that it never searches.
        gc.set_threshold(first * _SLOWER, *others)
        self._ours = gc.get_threshold()

    def close(self) -> None:
        """Give the collector its pace back, unless somebody has set another."""
        if self._before is not None and gc.get_threshold() == self._ours:
            gc.set_threshold(*self._before)
        self._before = None
