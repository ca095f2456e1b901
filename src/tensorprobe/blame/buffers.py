"""Arguments that a call only writes into: what was in them says nothing about what it computes.

A rank hands memory as it was found, or full of old results, to what receives: `recv`, `all_gather`
and its like, `broadcast` on every rank but the one that sends.
"""

from __future__ import annotations

from tensorprobe.operations.calls import is_overwritten
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import CallRecord, Leaf, ScalarValue

__all__ = ["is_buffer", "peer_of"]

_FIRST = ("input.0",)
_RECEIVING: dict[str, tuple[str, ...]] = {
    "recv": (*_FIRST, "kwargs.tensor"),
    "irecv": (*_FIRST, "kwargs.tensor"),
    "scatter": (*_FIRST, "kwargs.tensor"),
    "gather": ("input.1", "kwargs.gather_list"),
    "all_gather": (*_FIRST, "kwargs.tensor_list"),
    "all_gather_coalesced": (*_FIRST, "kwargs.output_tensor_lists"),
    "all_gather_into_tensor": (*_FIRST, "kwargs.output_tensor"),
    "all_gather_single": (*_FIRST, "kwargs.output_tensor"),
    "_all_gather_base": (*_FIRST, "kwargs.output_tensor"),
    "reduce_scatter": (*_FIRST, "kwargs.output"),
    "reduce_scatter_tensor": (*_FIRST, "kwargs.output"),
    "reduce_scatter_single": (*_FIRST, "kwargs.output"),
    "_reduce_scatter_base": (*_FIRST, "kwargs.output"),
    "all_to_all": (*_FIRST, "kwargs.output_tensor_list"),
    "all_to_all_single": (*_FIRST, "kwargs.output"),
}
_RECEIVERS_OF_ONE = (*_FIRST, "kwargs.tensor")


def is_buffer(call: CallRecord, leaf: Leaf, place: str, rank: int | None) -> bool:
    """Whether an argument of a call is written into and never read.

    Args:
        call: the call.
        leaf: the argument.
        place: where it stands, `input.0`.
        rank: the rank that makes the call, where it is known.
    """
    if leaf.section not in ("input", "kwargs"):
        return False
    if not call.name.startswith("Distributed."):
        return place == "input.0" and is_overwritten(call.name)
    if leaf.peer_op is not None:
        return leaf.peer_op.op.endswith("irecv")
    operation = operation_of(call.name)
    places = _RECEIVING.get(operation, ())
    if operation == "broadcast":
        source = peer_of(call, "src", 1)
        places = _RECEIVERS_OF_ONE if None not in (source, rank) and source != rank else ()
    return any(place == start or place.startswith(start + ".") for start in places)


def peer_of(call: CallRecord, key: str, index: int) -> int | None:
    """Return the rank that a call names as its source or target, or None."""
    inputs = call.inputs or ()
    value = (call.kwargs or {}).get(key, inputs[index] if index < len(inputs) else None)
    is_number = isinstance(value, ScalarValue) and isinstance(value.value, int)
    return int(value.value) if is_number else None  # type: ignore[union-attr, arg-type]
