"""The values of a call as the comparison needs them: flat, named by their place, in dump order.

A value's place is its section and the way down, `input.0` or `kwargs.dim`: the same in the dumps of
all tools, which spell the whole name of a keyword's value in two ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store import RankDump

__all__ = ["CallLeaves", "Leaf", "read_leaves", "row_name", "state_of"]


class Leaf(NamedTuple):
    """One value."""

    place: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    max: Any
    min: Any
    mean: Any
    norm: Any
    requires_grad: bool | None
    checksum: str | None
    data_name: str | None


class CallLeaves(NamedTuple):
    """One call."""

    name: str
    leaves: list[Leaf]
    is_recompute: bool | None


def read_leaves(part: RankDump) -> Iterator[CallLeaves]:
    """Yield all calls."""
    for call in part.calls():
        yield CallLeaves(call.name, list(_leaves(call)), call.is_recompute)


def _leaves(call: CallRecord) -> Iterator[Leaf]:
    for leaf in call.leaves():
        place = ".".join((leaf.section, *leaf.path)) if leaf.section else ".".join(leaf.path)
        yield _leaf(place, leaf.value)


def _same(place: str, kind: str, dtype: str, value: Any) -> Leaf:
    return Leaf(place, kind, dtype, (), value, value, value, value, None, None, None)


def _leaf(place: str, v: Value) -> Leaf:
    match v:
        case TensorValue():
            return Leaf(
                place,
                "tensor",
                v.dtype,
                v.shape,
                v.max,
                v.min,
                v.mean,
                v.norm,
                v.requires_grad,
                v.checksum,
                v.data_name,
            )
        case None:
            return _same(place, "none", "none", None)
        case ScalarValue(name, value):
            return _same(place, name, name, value)
        case SliceValue():
            return _same(place, "slice", "slice", None)
        case EllipsisValue():
            return _same(place, "ellipsis", "ellipsis", "...")
        case SizeValue(dims):
            return _same(place, "torch.Size", "torch.Size", None)._replace(shape=dims)
        case DtypeValue(name):
            return _same(place, "torch.dtype", "torch.dtype", name)
        case DeviceValue(name):
            return _same(place, "torch.device", "torch.device", name)
        case ReduceOpValue(name):
            return _same(place, "torch.distributed.ReduceOp", "torch.distributed.ReduceOp", name)
        case MemoryFormatValue(name):
            return _same(place, "torch.memory_format", "torch.memory_format", None)
        case GroupValue(ranks):
            return _same(place, "torch.ProcessGroup", "torch.ProcessGroup", str(list(ranks)))
        case UnknownValue(name, _):
            return _same(place, name, name, None)
        case ListValue() | DictValue() | PeerOpValue():
            raise AssertionError


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
    section = leaf.place.partition(".")[0]
    if section == "kwargs":
        return "input"
    return section if section in ("input", "output", "parameters") else "value"
