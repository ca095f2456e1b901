"""Find the arguments of a call that are no tensors and differ between two runs."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprobe.records import CallRecord, ScalarValue, TensorValue, Value

__all__ = ["ArgumentChange", "find_changed_arguments"]

_NOT_GIVEN = ScalarValue("str", "not given")


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """An argument that is no tensor and differs: its place and both values, in words."""

    place: str
    candidate: str
    reference: str


def find_changed_arguments(mine: CallRecord, other: CallRecord) -> tuple[ArgumentChange, ...]:
    """Return the numbers, texts and flags among the arguments that differ."""
    ours, theirs = (
        {
            (leaf.section, *leaf.path): leaf.value
            for leaf in call.leaves()
            if leaf.section != "output"
        }
        for call in (mine, other)
    )
    found = []
    for place in dict.fromkeys((*ours, *theirs)):
        if place[0] != "kwargs" and not (place in ours and place in theirs):
            continue
        values = (ours.get(place, _NOT_GIVEN), theirs.get(place, _NOT_GIVEN))
        if any(isinstance(item, TensorValue) for item in values) or _are_alike(*values):
            continue
        if not any(isinstance(item, ScalarValue) and item is not _NOT_GIVEN for item in values):
            continue
        shown = [str(item.value) if isinstance(item, ScalarValue) else str(item) for item in values]
        found.append(ArgumentChange(".".join(place), *shown))
    return tuple(found)


def _are_alike(mine: Value, other: Value) -> bool:
    """Whether two arguments are the same; NaN is what NaN is."""
    if mine == other:
        return True
    if not (isinstance(mine, ScalarValue) and isinstance(other, ScalarValue)):
        return False
    return mine.value != mine.value and other.value != other.value
