"""What was recorded of a call's tensors, in the order of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorprobe.records import (
    CallRecord,
    DictValue,
    ListValue,
    PeerOpValue,
    TensorValue,
    Value,
)

__all__ = ["dict_places", "tensor_values", "wants_gradients"]


def tensor_values(record: CallRecord) -> list[TensorValue]:
    """Return the descriptions of the input tensors in the order of the arguments."""
    given = (*(record.inputs or ()), *(record.kwargs or {}).values())
    return [value for argument in given for value in _tensors_of(argument)]


def dict_places(record: CallRecord) -> list[str]:
    """Return which arguments were recorded as a dict; objects of other classes are, too."""
    places = {f"input.{index}": value for index, value in enumerate(record.inputs or ())}
    places |= {f"input.{key}": value for key, value in (record.kwargs or {}).items()}
    return [place for place, value in places.items() if isinstance(value, DictValue)]


def _tensors_of(value: Value) -> Iterator[TensorValue]:
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, ListValue):
        for item in value.items:
            yield from _tensors_of(item)
    elif isinstance(value, DictValue):
        for _, item in value.items:
            yield from _tensors_of(item)
    elif isinstance(value, PeerOpValue):
        yield from _tensors_of(value.tensor)


def wants_gradients(record: CallRecord, values: Sequence[TensorValue]) -> bool:
    """Whether the recorded call was watched by autograd."""
    if not any(value.requires_grad for value in values):
        return False
    outputs = [found for value in record.outputs or () for found in _tensors_of(value)]
    # Without recorded outputs, or in place with none, nothing speaks against it.
    return not outputs or any(value.requires_grad is not False for value in outputs)
