"""Places of equal values: any of them is right."""

from __future__ import annotations

import torch

from tensorprobe.blame.agreement import is_float
from tensorprobe.blame.evidence import flat_tensors, results_of
from tensorprobe.blame.operations import WITH_PLACES
from tensorprobe.blame.sides import Side
from tensorprobe.records import CallRecord, ScalarValue

__all__ = ["is_tie", "may_tie"]


def may_tie(operation: str, call: CallRecord, index: int) -> bool:
    """Whether a result is places of values that another result holds, which are compared there."""
    if operation not in WITH_PLACES or not index:
        return False
    first = results_of(call)[0]
    return first is not None and is_float(first)


def is_tie(call: CallRecord, side: Side, got: torch.Tensor, wanted: torch.Tensor | None) -> bool:
    """Whether the places that were chosen hold the values that the right places hold.

    Args:
        call: the call that chose them.
        side: the run that made it.
        got: the places that it chose.
        wanted: the right ones, as a replay gives them.
    """
    value = next((item for item in flat_tensors(call.inputs) if item is not None), None)
    if value is None or wanted is None or wanted.shape != got.shape:
        return False
    given = side.load(value)
    inputs = call.inputs or ()
    dim = (call.kwargs or {}).get("dim", inputs[1] if len(inputs) > 1 else None)
    if not isinstance(dim, ScalarValue) or isinstance(dim.value, (str, complex)):
        flat = given.reshape(-1)
        return torch.equal(flat[got.reshape(-1)], flat[wanted.reshape(-1)])
    axis = int(dim.value)
    if got.dim() < given.dim():
        got, wanted = got.unsqueeze(axis), wanted.unsqueeze(axis)
    return torch.equal(given.gather(axis, got), given.gather(axis, wanted))
