"""Keep the garbage collector as busy as it would be without us.

Python looks for garbage whenever so many objects were made that are still there. The records of a
step are thousands, none of them garbage: a training that made a few hundred objects in a step
would be searched a dozen times, and every few steps as a whole, which takes a tenth of a second.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["GcPace"]

# Records of a small model are some thirty thousand objects; the first threshold is 700 or 2000.
_SLOWER = 64

_Thresholds = tuple[int, int, int]


class _Shared:
    """What all that are open have in common: a step begins before the last one is written."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: _Thresholds = (0, 0, 0)
        self.ours: _Thresholds = (0, 0, 0)


_shared = _Shared()


class GcPace:
    """Has the collector wait longer between its searches while it is open."""

    def __init__(self) -> None:
        self._is_open = False

    def open(self) -> None:
        """Start to count our own objects out."""
        with _shared.lock:
            if self._is_open:
                return
            self._is_open = True
            _shared.users += 1
            if _shared.users > 1:
                return
            first, *others = _shared.before = gc.get_threshold()
            # Zero means that it never searches.
            gc.set_threshold(first * _SLOWER, *others)
            _shared.ours = gc.get_threshold()

    def close(self) -> None:
        """Give the collector its pace back, unless somebody has set another."""
        with _shared.lock:
            if not self._is_open:
                return
            self._is_open = False
            _shared.users -= 1
            if not _shared.users and gc.get_threshold() == _shared.ours:
                gc.set_threshold(*_shared.before)
