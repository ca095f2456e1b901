"""Facts of one call: of its operation, told from its name, and of what it is given."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from tensorprobe.dtypes import dtype_named
from tensorprobe.operations.facts import (
    EXACT,
    EXACT_IF_REAL,
    OVERWRITING,
    RECEIVING,
    ROUNDING_ARGUMENTS,
    UNINITIALISED,
    Fact,
)
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import CallRecord, ScalarValue, flat_tensors

__all__ = [
    "can_mean_nothing",
    "is_at",
    "is_exact_call",
    "is_overwritten",
    "is_uninitialised",
    "meaningless_as",
]

# The interfaces whose `out` is written into and never read; of others nobody knows.
_TORCH_APIS = frozenset(("Torch", "Tensor", "Functional", "Aten"))


def is_exact_call(call: CallRecord) -> bool:
    """Whether a call only moves, picks or compares numbers, by its operation and its arguments.

    >>> is_exact_call(CallRecord("Tensor.scatter_.0.forward", (), {}, ()))
    True
    >>> adds = {"reduce": ScalarValue("str", "add")}
    >>> is_exact_call(CallRecord("Tensor.scatter_.0.forward", (), adds, ()))
    False
    """
    operation = operation_of(call.name)
    if operation not in EXACT:
        return False
    given = [(call.kwargs or {}).get(key) for key in ROUNDING_ARGUMENTS]
    if any(isinstance(value, ScalarValue) and value.value for value in given):
        return False
    if ".reduce" in call.name:  # An overload of an operator.
        return False
    if operation not in EXACT_IF_REAL:
        return True
    dtypes = (dtype_named(v.dtype) for v in flat_tensors(call.inputs) if v is not None)
    return not any(dtype is not None and dtype.kind == "complex" for dtype in dtypes)


def is_overwritten(text: str) -> bool:
    """Whether a call writes over its first argument without a look at what was there.

    >>> is_overwritten("Tensor.zero_.0.forward"), is_overwritten("Tensor.add_.0.forward")
    (True, False)
    """
    return _is_forward_of(text, OVERWRITING)


def is_uninitialised(text: str) -> bool:
    """Whether a call returns memory as it was found, so that its results mean nothing.

    >>> is_uninitialised("Torch.zeros.0.forward"), is_uninitialised("Aten.empty.out.0.forward")
    (False, True)
    """
    return _is_forward_of(text, UNINITIALISED)


def meaningless_as(call: str, place: str) -> Literal["uninitialised", "overwritten"] | None:
    """Say why a value that differs means nothing; None of what is computed or read.

    Memory as it was found is no result of the call that hands it out, and what a call writes over
    is not read by it. A call that does read such memory is given it, and differs there.

    >>> meaningless_as("Torch.empty.0.forward", "output.0")
    'uninitialised'
    >>> meaningless_as("Tensor.zero_.0.forward", "input.0")
    'overwritten'
    >>> meaningless_as("Torch.add.0.forward", "kwargs.out")
    'overwritten'
    >>> meaningless_as("Distributed.recv.0.forward", "input.0")
    'overwritten'
    >>> meaningless_as("Torch.empty_like.0.forward", "input.0")
    """
    if place.startswith("output"):
        return "uninitialised" if is_uninitialised(call) else None
    api = call.partition(".")[0]
    if api == "Distributed":
        written = RECEIVING.get(operation_of(call), ())
        return "overwritten" if is_at(place, written) else None
    is_written = is_at(place, ("kwargs.out",)) and api in _TORCH_APIS
    if is_written or (place == "input.0" and is_overwritten(call)):
        return "overwritten"
    return None


def is_at(place: str, starts: tuple[str, ...]) -> bool:
    """Whether a value is one of these, or stands inside one of them."""
    return any(place == start or place.startswith(f"{start}.") for start in starts)


def can_mean_nothing(call: str) -> bool:
    """Whether some value of a call, other than its keywords, may mean nothing; quick."""
    api, _, direction = call.rpartition(".")
    return direction == "forward" and _is_about_memory(api.rpartition(".")[0])


# A run makes calls of few kinds.
@lru_cache(maxsize=4096)
def _is_about_memory(kind: str) -> bool:
    call = f"{kind}.0.forward"
    return is_uninitialised(call) or is_overwritten(call) or kind.startswith("Distributed.")


def _is_forward_of(text: str, fact: Fact) -> bool:
    api, _, direction = text.rpartition(".")
    return direction == "forward" and api.rpartition(".")[0].partition(".")[2] in fact
