"""What of two runs no distance tells: who says that all agrees must not hide it.

    a record, a file or a rank that could not be read     the gaps of both dumps
    a call that one run alone has, or whose name says nothing
    a value that one run alone has, or that is another kind, text or number in the other

Whole kinds of calls that one run did not record at all, such as modules, are told by its level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensorprobe.blame.context import Context
from tensorprobe.pairing.call_pairs import CallPair, kinds_of_both
from tensorprobe.pairing.gradient_order import OTHER_GRADIENTS
from tensorprobe.records import (
    DeviceValue,
    DictValue,
    GroupValue,
    ListValue,
    ScalarValue,
    TensorValue,
    Value,
)

__all__ = ["count_uncompared", "find_uncompared"]

# They name the machine, and another one is why most runs are compared.
_OF_THE_MACHINE = (DeviceValue, GroupValue)


def find_uncompared(contexts: Sequence[Context]) -> Iterator[str]:
    """Yield what was not compared of the ranks of one step, a sentence each."""
    for context in contexts:
        for side in (context.candidate, context.reference):
            yield from map(str, side.part.known_gaps)
        for side, whose in ((context.candidate, "candidate"), (context.reference, "reference")):
            for name in side.unnamed:
                yield f"{name!r} of the {whose} is not the name of a call"
        kinds = kinds_of_both(context.pairs)
        for pair in context.pairs:
            yield from _of_pair(pair, kinds)


def count_uncompared(found: Sequence[str]) -> str:
    """Return how many things were not compared, and the first of them, in words.

    >>> count_uncompared(["a.pt is missing"])
    '1 thing was not compared: a.pt is missing'
    """
    if len(found) == 1:
        return f"1 thing was not compared: {found[0]}"
    return f"{len(found)} things were not compared, first: {found[0]}"


def _of_pair(pair: CallPair, kinds: Iterable[bool]) -> Iterator[str]:
    if pair.candidate is None or pair.reference is None:
        if pair.name.startswith("Module.") in kinds:
            whose = "reference" if pair.candidate is None else "candidate"
            yield f"only the {whose} has {pair.name}"
        return
    for value in pair.values():
        where = f"{pair.name}.{value.place}"
        mine, other = value.candidate, value.reference
        if value.is_apart:
            if mine is not None and isinstance(mine.value, TensorValue):
                yield f"{where}: {OTHER_GRADIENTS}"
        elif mine is None or other is None:
            whose = "reference" if mine is None else "candidate"
            yield f"only the {whose} has {where}"
        elif not _is_plain_pair(mine.value, other.value):
            yield f"{where} is {_words(mine.value)} against {_words(other.value)}"


def _is_plain_pair(mine: Value, other: Value) -> bool:
    """Whether two values are tensors whose distance tells, or the same, or of the machine."""
    if isinstance(mine, TensorValue) and isinstance(other, TensorValue):
        return mine.dtype == other.dtype
    if type(mine) is not type(other):
        return False
    if isinstance(mine, ScalarValue) and isinstance(other, ScalarValue):
        return _is_same(mine, other)
    if isinstance(mine, ListValue) and isinstance(other, ListValue):
        # An older tool wrote tuples as lists.
        return mine.items == other.items
    return mine == other or isinstance(mine, _OF_THE_MACHINE)


def _is_same(mine: ScalarValue, other: ScalarValue) -> bool:
    a, b = mine.value, other.value
    return a == b or (a != a and b != b)


def _words(value: Value) -> str:
    match value:
        case None:
            return "nothing"
        case TensorValue(dtype, shape):
            return f"a tensor of {dtype} {list(shape)}"
        case ScalarValue(_, plain):
            text = repr(plain)
            return text if len(text) <= _LONGEST else f"a {value.type_name}"
        case DictValue() | ListValue():
            return "empty"
        case _:
            return type(value).__name__.removesuffix("Value").lower()


_LONGEST = 40
