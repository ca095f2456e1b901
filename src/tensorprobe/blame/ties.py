"""Places of equal values: any of them is right."""

from __future__ import annotations

import torch

from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.operations.facts import WITH_PLACES
from tensorprobe.records import CallRecord, ScalarValue, flat_tensors, results_of
from tensorprobe.replay.chosen_places import find_axis, hold_equal_values, place_result
from tensorprobe.rounding.distance import is_float

__all__ = ["is_tie", "may_tie"]


def may_tie(operation: str, call: CallRecord, index: int) -> bool:
    """Whether a result is places of values that another result holds, which are compared there."""
    if operation not in WITH_PLACES or not index:
        return False
    first = results_of(call)[0]
    return first is not None and is_float(first)


def is_tie(
    operation: str,
    call: CallRecord,
    side: RecordedRun,
    got: torch.Tensor,
    wanted: torch.Tensor | None,
) -> bool:
    """Whether the places that were chosen hold the values that the right places hold.

    Args:
        operation: the function.
        call: the call that chose them.
        side: the run that made it.
        got: the places that it chose.
        wanted: the right ones, as a replay gives them.
    """
    value = next((item for item in flat_tensors(call.inputs) if item is not None), None)
    if value is None or wanted is None:
        return False
    args = [_number_of(item) for item in call.inputs or ()]
    kwargs = {key: _number_of(item) for key, item in (call.kwargs or {}).items()}
    if place_result(operation, args, kwargs) is None:
        return False
    axis = find_axis(operation, args, kwargs)
    return hold_equal_values(operation, side.load(value), got, wanted, axis)


def _number_of(item: object) -> object:
    return item.value if isinstance(item, ScalarValue) else None
