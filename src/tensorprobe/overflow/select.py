"""Which calls of a dump overflowed, and what is known of each from its statistics.

CallLeaves ─► inputs and outputs by their places ─► overflow_rule ─► FoundOverflow
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from tensorprobe.names import is_call_name, is_parameter_gradients, kind_of_call
from tensorprobe.overflow_rule import (
    LARGEST,
    Extent,
    OverflowKind,
    can_overflow,
    find_overflow,
    is_nonfinite,
    overwritten_places,
)
from tensorprobe.records import DumpInfo
from tensorprobe.store.dump import RankDump
from tensorprobe.store.leaves import CallLeaves, Leaf

__all__ = [
    "CallExtents",
    "FoundOverflow",
    "extents_of",
    "find_overflows",
    "is_striking",
    "range_text",
]

_LIMITS = frozenset(LARGEST.values())


@dataclass(frozen=True, slots=True)
class CallExtents:
    """The extents of what one call read and of what it made.

    Attributes:
        name: the call's name.
        inputs: what it was given and read, parameters and plain numbers among them.
        outputs: what it made.
        has_outputs: whether outputs were recorded at all.
    """

    name: str
    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]
    has_outputs: bool

    @property
    def kind(self) -> OverflowKind | None:
        """How the call overflowed; None if it did not."""
        if find_overflow((), self.outputs) is None or not can_overflow(self.name):
            return None
        return find_overflow(self.inputs, self.outputs)

    @property
    def is_given_nonfinite(self) -> bool:
        """Whether something that it read is not finite."""
        return any(map(is_nonfinite, self.inputs))


@dataclass(frozen=True, slots=True)
class FoundOverflow:
    """One call that overflowed.

    Attributes:
        extents: what its statistics tell.
        kind: how it overflowed; `listed` where its results were not recorded and only the list
            that it stands in says so.
    """

    extents: CallExtents
    kind: OverflowKind | Literal["listed"]

    @property
    def name(self) -> str:
        """The call's name."""
        return self.extents.name


def is_striking(call: CallLeaves) -> bool:
    """Whether a value of the call is not finite or at a limit; quick, for every call."""
    for leaf in call.leaves:
        for number in (leaf.max, leaf.min):
            if type(number) is float and (not math.isfinite(number) or abs(number) in _LIMITS):
                return True
    return False


def extents_of(call: CallLeaves) -> CallExtents:
    """Return the extents of one call's values."""
    is_gradients = is_parameter_gradients(call.name)
    passed_over: frozenset[str] | None = None
    inputs: list[Extent] = []
    outputs: list[Extent] = []
    has_outputs = False
    for leaf in call.leaves:
        section = leaf.place.partition(".")[0]
        if is_gradients or section == "output":
            has_outputs = True
            outputs.extend(_extent(leaf))
            continue
        if passed_over is None:
            passed_over = overwritten_places(call.name)
        if leaf.place not in passed_over:
            inputs.extend(_extent(leaf))
    return CallExtents(call.name, tuple(inputs), tuple(outputs), has_outputs)


def find_overflows(part: RankDump) -> Iterator[FoundOverflow]:
    """Yield the calls of one rank that overflowed, in the order of the dump."""
    lists_all = _lists_overflows_alone(part.info)
    for call in part.read_leaves():
        if not lists_all and not is_striking(call):
            continue
        extents = extents_of(call)
        kind = extents.kind
        if is_parameter_gradients(call.name):
            # Alone they do not tell whether their module was given them; where only overflows
            # are recorded, that was seen to.
            if part.info.task == "overflow_check" and any(map(is_nonfinite, extents.outputs)):
                yield FoundOverflow(extents, "nonfinite")
        elif kind is not None:
            yield FoundOverflow(extents, kind)
        elif lists_all and is_call_name(call.name) and kind_of_call(call.name)[0] == "api":
            yield FoundOverflow(extents, "listed")


def _lists_overflows_alone(info: DumpInfo) -> bool:
    """Whether a tool wrote nothing but overflows, by a rule of its own."""
    if info.tool == "api_accuracy_checker":
        return True
    return info.tool == "msprobe" and info.task == "overflow_check"


def _extent(leaf: Leaf) -> Iterable[Extent]:
    numbers = (leaf.max, leaf.min)
    if all(isinstance(number, (bool, int, float)) for number in numbers):
        yield Extent(leaf.dtype, *numbers)


def range_text(extents: Sequence[Extent]) -> str:
    """Return the least and the greatest of some values, for a person.

    >>> range_text([Extent("torch.float32", 2.0, -1.5), Extent("int", 3, 3)])
    '[-1.5, 3]'
    """
    if not extents:
        return ""
    # Numbers as they are: an argument may be a whole number that no float can hold.
    ends = [number for extent in extents for number in (extent.min, extent.max)]
    known = [number for number in ends if number == number]
    if not known:
        return "nan"
    is_whole = len(known) == len(ends)
    return f"[{_short(min(known))}, {_short(max(known))}]{'' if is_whole else ' and nan'}"


def _short(number: Any) -> str:
    try:
        return f"{float(number):g}"
    except OverflowError:
        return f"{Decimal(number):.3g}"
