"""Which calls of a dump are checked, and which of them stand for others."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, parse_call
from tensorprobe.records import (
    CallRecord,
    DictValue,
    ListValue,
    PeerOpValue,
    TensorValue,
    Value,
)
from tensorprobe.store.dump import RankDump

__all__ = ["PlannedCall", "plan_calls"]


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call to check.

    Attributes:
        name: its name in the dump.
        shown: its name in the results: without the direction, as in the older tools.
        stands_for: how many calls it stands for, itself included.
    """

    name: str
    shown: str
    stands_for: int = 1


def plan_calls(
    part: RankDump,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    dedupe: bool = False,
) -> list[PlannedCall]:
    """Return the function calls of a dump that are to be checked, in its order.

    Args:
        part: the dump.
        include: patterns or parts of names; only calls that fit one. Empty for all.
        exclude: likewise; no call that fits one.
        dedupe: calls that are equal but for the values of their tensors are checked once.
    """
    planned = [
        call
        for call in _calls_of(part)
        if (not include or _fits(call.name, include)) and not _fits(call.name, exclude)
    ]
    return _without_repetition(part, planned) if dedupe else planned


def describe_choice(
    parts: Sequence[RankDump], include: Sequence[str], exclude: Sequence[str]
) -> list[str]:
    """Say how many calls a choice leaves out, and which of its names no call has."""
    if not include and not exclude:
        return []
    names = [call.name for part in parts for call in _calls_of(part)]
    chosen = sum(len(plan_calls(part, include=include, exclude=exclude)) for part in parts)
    told = [f"{len(names) - chosen} of {len(names)} calls are left out by include and exclude"]
    unused = [one for one in (*include, *exclude) if not any(_fits(name, (one,)) for name in names)]
    if unused:
        told.append(f"no call of the dump fits {' or '.join(unused)}")
    return told


def _calls_of(part: RankDump) -> Iterator[PlannedCall]:
    """Yield the calls of a dump that can be checked."""
    # At L2 an operator's backward is a call of its own, with all its arguments.
    takes_backward = part.info.level == "L2"
    for name in part.names:
        try:
            call = parse_call(name)
        except NameFormatError:
            continue
        if isinstance(call, ApiCall) and (takes_backward or call.direction == "forward"):
            shown = name if takes_backward else f"{call.api_type}.{call.api_name}.{call.number}"
            yield PlannedCall(name, shown)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern) if any(sign in pattern for sign in "*?[")
        else pattern in name
        for pattern in patterns
    )  # fmt: skip


def _without_repetition(part: RankDump, planned: Sequence[PlannedCall]) -> list[PlannedCall]:
    first: dict[object, int] = {}
    kept: list[PlannedCall] = []
    for call in planned:
        record = part.try_call(call.name)
        key = call.name if record is None else _kind_of(record)
        if key in first:
            place = first[key]
            kept[place] = replace(kept[place], stands_for=kept[place].stands_for + 1)
        else:
            first[key] = len(kept)
            kept.append(call)
    return kept


def _kind_of(record: CallRecord) -> object:
    """Return what two calls have in common that differ in the values of their tensors alone."""
    name = parse_call(record.name)
    assert isinstance(name, ApiCall)
    outputs = None if record.outputs is None else tuple(map(_without_values, record.outputs))
    return (
        name.api_type,
        name.api_name,
        name.direction,
        tuple(map(_without_values, record.inputs or ())),
        tuple((key, _without_values(value)) for key, value in (record.kwargs or {}).items()),
        outputs,
    )


def _without_values(value: Value) -> object:
    if isinstance(value, TensorValue):
        return (value.dtype, value.shape, value.requires_grad)
    if isinstance(value, ListValue):
        return (value.is_tuple, tuple(map(_without_values, value.items)))
    if isinstance(value, DictValue):
        return tuple((key, _without_values(item)) for key, item in value.items)
    if isinstance(value, PeerOpValue):
        return (value.op, value.peer, _without_values(value.tensor))
    # NaN is a scalar that equals nothing.
    return repr(value)
