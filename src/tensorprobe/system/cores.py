"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["count_cores"]


def count_cores() -> int:
    """Return the number of cores that the system lets this process run on.

    >>> count_cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
