"""How much memory replayed calls may take: known before anything is allocated for one.

the machine, its control group, the process's own limit ─► how much a worker may have
                                                      └─► how much one call's tensors may take
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from tensorprobe.errors import ConfigError, RebuildError

__all__ = ["has_room", "require_memory", "require_room", "share_of_memory", "shown_bytes"]

_KIB = 1 << 10
# Of what a process may have, so much is for the tensors of one call: its inputs and results once,
# in the widest type. Runs with other roundings, gradients and torch itself need the rest.
_OF_ONE_CALL = 0.5
# With less, torch with its libraries leaves no room for a call.
_LEAST = 2 << 30
# Where the machine's memory cannot be asked for.
_USUAL = 16 << 30
_WIDEST = 8
# More dimensions no tensor can have.
_DIMENSIONS = 64


def share_of_memory(workers: int, *, gigabytes: float | None = None) -> int:
    """Return how many bytes each of several worker processes may take.

    >>> share_of_memory(1, gigabytes=4.0) == 4 * 2**30
    True

    Args:
        workers: how many there are.
        gigabytes: what the user allows each; None: a fair share of what this process could have.
    """
    if gigabytes is not None:
        return int(gigabytes * 2**30)
    return max(int(_available() * 0.9) // max(workers, 1), _LEAST)


def require_memory(gigabytes: float | None) -> None:
    """Refuse a limit in which torch itself has no room.

    Raises:
        ConfigError: it is less than that.
    """
    if gigabytes is not None and not gigabytes >= _LEAST / 2**30:
        raise ConfigError(f"memory is {gigabytes:g} GiB, wanted {_LEAST / 2**30:g} or more")


def require_room(shapes: Iterable[tuple[int, ...]], what: str) -> None:
    """Refuse tensors that together are more than one call may have.

    Args:
        shapes: of the tensors; in their widest type an element takes eight bytes.
        what: they are, in words: `its inputs`.

    Raises:
        RebuildError: they are too large, or no tensor can have such a shape.
    """
    total = 0
    for shape in shapes:
        if len(shape) > _DIMENSIONS or any(size < 0 for size in shape):
            raise RebuildError(f"no tensor has the shape that was recorded of {what}")
        total += math.prod(shape) * _WIDEST
    limit = _allowed()
    if total > limit:
        raise RebuildError(
            f"{what} would take {shown_bytes(total)}, and one call may use {shown_bytes(limit)}; "
            "--memory allows more where the machine has it"
        )


def has_room(elements: int) -> bool:
    """Whether one call may have so many elements."""
    return elements * _WIDEST <= _allowed()


def shown_bytes(count: int) -> str:
    """Return a number of bytes in words.

    >>> shown_bytes(3 * 2**30), shown_bytes(10**30)
    ('3.0 GiB', '8.3e+05 YiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"):
        if size < _KIB:
            break
        size, unit = size / _KIB, larger
    return f"{size:.1f} {unit}" if size < 10 * _KIB else f"{size:.2g} {unit}"


def _allowed() -> int:
    return int(_available() * _OF_ONE_CALL)


def _available() -> int:
    """Return the least of what the machine has and what the process is allowed."""
    found = [_of_machine()]
    with suppress(ImportError):
        import resource

        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
            soft, _ = resource.getrlimit(kind)
            if soft != resource.RLIM_INFINITY:
                found.append(soft)
    return min(found)


@cache
def _of_machine() -> int:
    found = [_USUAL]
    with suppress(AttributeError, OSError, ValueError):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        # "max" where there is none.
        with suppress(OSError, ValueError):
            found.append(int(Path(name).read_text()))
    return min(found)
