"""What a value is called in the tables, and what it is to its call.

A value's place is its section and the way down, `input.0` or `kwargs.dim`: the same in the dumps of
all tools, which spell the whole name of a keyword's value in two ways.
"""

from __future__ import annotations

import functools

from tensorprobe.store.leaves import Leaf

__all__ = ["row_name", "state_at", "state_of"]


def row_name(call: str, leaf: Leaf) -> str:
    """Return the name of a value's row.

    A keyword's value stands under `.kwargs` if it has a file and under `.input` if not, as the
    older tools have it.
    """
    place = leaf.place
    if leaf.data_name is None and place.startswith("kwargs."):
        return f"{call}.input.{place[7:]}"
    return f"{call}.{place}" if place else call


def state_of(leaf: Leaf) -> str:
    """Say what a value is to its call: input, parameters, output or, for the rest, value."""
    return state_at(leaf.place)


# A million values stand at a few places.
@functools.lru_cache(maxsize=4096)
def state_at(place: str) -> str:
    """Say what the value at a place is to its call."""
    section = place.partition(".")[0]
    if section == "kwargs":
        return "input"
    return section if section in ("input", "output", "parameters") else "value"
