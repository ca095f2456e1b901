"""How much memory this process can have at most: that of the machine, or of its container."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["most_memory"]

# Where neither the system nor a container tells.
_USUAL = 1 << 36
_CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@cache
def most_memory() -> int:
    """Return the bytes that this process can have at most.

    >>> most_memory() > 1 << 20
    True
    """
    found = [_USUAL]
    with suppress(OSError, ValueError):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        # "max", where there is no limit, is no number.
        with suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min((size for size in found if size > 0), default=_USUAL)
