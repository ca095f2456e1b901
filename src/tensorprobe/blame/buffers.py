"""Values that say nothing about what a call computes: what it only writes into, memory as found.

A rank hands memory as it was found, or full of old results, to what receives: `recv`, `all_gather`
and its like, `broadcast` on every rank but the one that sends.
"""

from __future__ import annotations

from tensorprobe.operations.calls import is_at, meaningless_as
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import CallRecord, Leaf, ScalarValue

__all__ = ["means_nothing", "peer_of"]

_RECEIVERS_OF_ONE = ("input.0", "kwargs.tensor")


def means_nothing(call: CallRecord, leaf: Leaf, place: str, rank: int | None) -> bool:
    """Whether an argument of a call is written into and never read, or a result never computed.

    Args:
        call: the call.
        leaf: the value.
        place: where it stands, `input.0`.
        rank: the rank that makes the call, where it is known.
    """
    if leaf.peer_op is not None and leaf.section != "output":
        return leaf.peer_op.op.endswith("irecv")
    if call.name.startswith("Distributed.") and operation_of(call.name) == "broadcast":
        source = peer_of(call, "src", 1)
        is_given = None not in (source, rank) and source != rank
        return is_given and is_at(place, _RECEIVERS_OF_ONE)
    return meaningless_as(call.name, place) is not None


def peer_of(call: CallRecord, key: str, index: int) -> int | None:
    """Return the rank that a call names as its source or target, or None."""
    inputs = call.inputs or ()
    value = (call.kwargs or {}).get(key, inputs[index] if index < len(inputs) else None)
    is_number = isinstance(value, ScalarValue) and isinstance(value.value, int)
    return int(value.value) if is_number else None  # type: ignore[union-attr, arg-type]
