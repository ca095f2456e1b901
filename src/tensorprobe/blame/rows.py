"""Cut a large call down to some of its rows, where each row of the result needs its own row only.

A replay of a linear layer over many thousand tokens costs as much as the layer. Which rows are
replayed is not left to chance: those that differ most between the runs, and some spread over all.
"""

from __future__ import annotations

import math

from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, ListValue, ScalarValue, TensorValue

__all__ = ["KEPT_ROWS", "cut_inputs", "rows_of"]

KEPT_ROWS = 48
# Below this a call is replayed as a whole.
_LARGE = 100_000
# The first argument goes row by row, the others are used by every row.
_FIRST_BY_ROWS = frozenset(
    (
        "linear",
        "gelu",
        "silu",
        "relu",
        "sigmoid",
        "tanh",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "layer_norm",
    )
)
_SOFTMAXES = frozenset(("softmax", "log_softmax"))
_ELEMENTWISE = frozenset(
    ("__add__", "__mul__", "__sub__", "__truediv__", "add", "mul", "sub", "div")
)


def rows_of(pair: CallPair) -> int:
    """Return into how many rows a call's result may be cut; 0 if it must be replayed as a whole."""
    if pair.phase != "forward" or pair.candidate is None or pair.reference is None:
        return 0
    if cut_inputs(pair.candidate) is None or cut_inputs(pair.reference) is None:
        return 0
    result = _result(pair.candidate)
    assert result is not None
    rows = math.prod(result.shape[:-1])
    return rows if math.prod(result.shape) > _LARGE and rows > 2 * KEPT_ROWS else 0


def cut_inputs(call: CallRecord) -> frozenset[str] | None:
    """Return the files of the arguments that are cut with the result, or None if it cannot be."""
    result = _result(call)
    if result is None or len(result.shape) < 2 or call.kwargs is None or not call.inputs:
        return None
    operation = operation_of(call.name)
    first = call.inputs[0]
    if not isinstance(first, TensorValue) or first.data_name is None:
        return None
    if first.shape[:-1] != result.shape[:-1]:
        return None
    if operation in _FIRST_BY_ROWS:
        if operation == "layer_norm":
            sizes = call.inputs[1] if len(call.inputs) > 1 else None
            if not isinstance(sizes, ListValue) or len(sizes.items) != 1:
                return None
        return frozenset((first.data_name,))
    if operation in _SOFTMAXES:
        dim = call.kwargs.get("dim", call.inputs[1] if len(call.inputs) > 1 else None)
        if not isinstance(dim, ScalarValue) or dim.value not in (-1, len(result.shape) - 1):
            return None
        return frozenset((first.data_name,))
    if operation in _ELEMENTWISE and not call.kwargs:
        tensors = [value for value in call.inputs if isinstance(value, TensorValue)]
        if all(value.shape == result.shape and value.data_name for value in tensors):
            return frozenset(value.data_name for value in tensors if value.data_name)
    return None


def _result(call: CallRecord) -> TensorValue | None:
    results = call.outputs or ()
    first = results[0] if len(results) == 1 else None
    return first if isinstance(first, TensorValue) and first.data_name is not None else None
