"""Tell a forked child from the process that opened a file, without asking the system each time."""

from __future__ import annotations

import os

__all__ = ["in_process", "this_process"]

_generation = 0


def this_process() -> int:
    """Return a number for `in_process`, which is another one in every forked child."""
    return _generation


def in_process(generation: int) -> bool:
    """Whether this is still the process that `generation` was taken in."""
    return generation == _generation


def _count_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)
