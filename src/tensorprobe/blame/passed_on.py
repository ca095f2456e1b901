"""Tell what a module was handed on from what came from outside.

At level L0 the code between modules is not recorded, and what a module is given by keywords is not
either: behind a suspect, values that no recorded call made may be its work.
"""

from __future__ import annotations

from collections.abc import Collection

from tensorprobe.blame.start import StartDifferences

__all__ = ["is_fed_unseen", "is_handed_on", "without_handed_on"]


def is_handed_on(call: str, place: str) -> bool:
    """Whether a value is given to a module, so that code between modules may have made it.

    >>> is_handed_on("Module.norm.LayerNorm.forward.0", "input.0")
    True
    >>> is_handed_on("Module.norm.LayerNorm.forward.0", "parameters.weight")
    False
    """
    return call.startswith("Module.") and place.startswith("input")


def is_fed_unseen(call: str) -> bool:
    """Whether a call may have been given what is not in its record: a module, by keywords."""
    return call.startswith("Module.")


def without_handed_on(start: StartDifferences, named: Collection[str]) -> StartDifferences:
    """Return what differs from the start without what is given to modules that are no suspects."""
    if start.kind != "state":
        return start
    places = tuple(
        (use, distance)
        for use, distance in start.places
        if use.call in named or not is_handed_on(use.call, use.place)
    )
    return StartDifferences("state" if places else "none", places, start.compared)
