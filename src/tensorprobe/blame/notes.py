"""Say what a reader of a conclusion should know beside it."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprobe.blame.context import Context
from tensorprobe.blame.uncompared import count_uncompared
from tensorprobe.operations.calls import is_uninitialised

__all__ = ["notes_on"]


def _who_holds(contexts: Sequence[Context]) -> str:
    """Say which dumps have no data."""
    first = contexts[0]
    has_data = [side.part.info.task == "tensor" for side in (first.candidate, first.reference)]
    if has_data[0] == has_data[1]:
        return "the dumps hold"
    return f"the {'reference' if has_data[0] else 'candidate'} holds"


def notes_on(contexts: Sequence[Context], basis: str, uncompared: Sequence[str]) -> list[str]:
    """Return what limits an answer, and what was taken for the way a run works."""
    notes = [count_uncompared(uncompared)] if uncompared else []
    for family, dtype in dict.fromkeys(key for context in contexts for key in context.raised):
        if any(
            context.types is not None and context.types.candidate == dtype for context in contexts
        ):
            # Autocast hands them shorter operands than were recorded, which is said already.
            continue
        notes.append(
            f"all {family} of {dtype} of the candidate work with fewer bits than {dtype} has "
            "(such as TF32): taken as the way the run works, not as a fault"
        )
    for context in contexts[:1]:
        ours, theirs = (side.part.info.level for side in (context.candidate, context.reference))
        if ours != theirs and None not in (ours, theirs):
            notes.append(
                f"the candidate was captured at level {ours}, the reference at {theirs}: only what "
                "both recorded is compared"
            )
    few = next(
        (context.types for context in contexts if context.types and not context.types.is_general),
        None,
    )
    if few is not None:
        notes.append(str(few))
    if basis == "statistics" and all(context.has_checksums for context in contexts):
        notes.append(
            "the dumps hold statistics and checksums: that a tensor differs is seen to the last "
            "bit, by how much only in its statistics; with task tensor calls can be replayed"
        )
    elif basis == "statistics":
        notes.append(
            f"{_who_holds(contexts)} statistics only: single elements and errors below their noise "
            "cannot be seen; with task tensor calls can be replayed"
        )
    elif basis == "checksums":
        notes.append(
            "the dumps hold checksums only: the first difference can be named, not its size"
        )
    found = sum(is_uninitialised(pair.name) for context in contexts for pair in context.pairs)
    if found:
        calls = "1 call that hands" if found == 1 else f"{found} calls that hand"
        notes.append(f"not compared: results of {calls} out memory as it was found, such as empty")
    unreplayed = sum(len(context.unreplayed) for context in contexts)
    if basis == "data" and unreplayed:
        calls = "1 call" if unreplayed == 1 else f"{unreplayed} calls"
        notes.append(f"judged by distances, as they cannot be replayed: {calls}")
    return notes
