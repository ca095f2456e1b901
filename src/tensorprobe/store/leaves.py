"""The values of a call laid flat, as whoever walks a whole dump wants them.

    CallRecord ─► leaves_of ─► CallLeaves                  any format
    parsed JSON ─► LeafWalker (store.leaf_walk) ─► CallLeaves   dump.json, four times faster

A leaf is one value with its place in the call. What is no tensor shows its value, or what the older
tools show of it, in the place of the four statistics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
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

__all__ = ["CallLeaves", "Leaf", "flat_leaf", "leaves_of"]


class Leaf(NamedTuple):
    """One value of a call that is no container.

    Attributes:
        place: its section and the way down, `input.0`, `kwargs.dim` or `parameters.weight`; without
            a section for saved values and for the gradients of parameters.
        kind: `tensor`, or the name of its type: `int`, `slice`, `torch.dtype`, `none`.
        dtype: of a tensor as torch prints it; of others their kind.
        shape: of a tensor, or the sizes of a `torch.Size`.
        max: largest element, and the like for the next three; of another value the value itself,
            or None where the older tools show none of it.
        min: smallest element.
        mean: arithmetic mean.
        norm: L2 norm.
        requires_grad: None where it was not recorded.
        checksum: of the bytes, where it was recorded.
        data_name: the file with the data, relative to the dump's data folder.
        peer_op: the send or receive that the tensor is part of.
    """

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
    peer_op: PeerOpValue | None = None


class CallLeaves(NamedTuple):
    """The values of one call: inputs, keywords, parameters, outputs, each in its own order."""

    name: str
    leaves: list[Leaf]
    is_recompute: bool | None


def leaves_of(call: CallRecord) -> CallLeaves:
    """Lay the values of a record flat.

    >>> call = CallRecord("Torch.sum.0.forward", kwargs={"dim": ScalarValue("int", 1)})
    >>> [(leaf.place, leaf.kind, leaf.max) for leaf in leaves_of(call).leaves]
    [('kwargs.dim', 'int', 1)]
    """
    leaves = []
    for leaf in call.leaves():
        path = (leaf.section, *leaf.path) if leaf.section else leaf.path
        flat = flat_leaf(".".join(path), leaf.value)
        leaves.append(flat if leaf.peer_op is None else flat._replace(peer_op=leaf.peer_op))
    return CallLeaves(call.name, leaves, call.is_recompute)


def flat_leaf(place: str, value: Value) -> Leaf:
    """Return one value that is no container as a leaf."""
    if isinstance(value, TensorValue):
        return Leaf(
            place,
            "tensor",
            value.dtype,
            value.shape,
            value.max,
            value.min,
            value.mean,
            value.norm,
            value.requires_grad,
            value.checksum,
            value.data_name,
        )
    kind, shown, shape = _described(value)
    return Leaf(place, kind, kind, shape, shown, shown, shown, shown, None, None, None)


def _described(value: Value) -> tuple[str, Any, tuple[int, ...]]:
    """Return the kind of a value that is no tensor, what is shown of it, and its shape."""
    match value:
        case None:
            return "none", None, ()
        case ScalarValue(type_name, plain):
            return type_name, plain, ()
        case DtypeValue(name):
            return "torch.dtype", name, ()
        case DeviceValue(name):
            return "torch.device", name, ()
        case ReduceOpValue(name):
            return "torch.distributed.ReduceOp", name, ()
        case GroupValue(ranks):
            return "torch.ProcessGroup", str(list(ranks)), ()
        case EllipsisValue():
            return "ellipsis", "...", ()
        case SizeValue(dims):
            return "torch.Size", None, dims
        case SliceValue():
            return "slice", None, ()
        case MemoryFormatValue():
            return "torch.memory_format", None, ()
        case UnknownValue(type_name):
            return type_name, None, ()
        case _:
            raise AssertionError(f"{type(value).__name__} is a container")
