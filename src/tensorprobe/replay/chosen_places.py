"""Functions that return places of what they chose: among equal values any place is right.

Kernels go through a tensor in orders of their own. Which of two equal numbers one of them finds
first is no matter of how well it computes, so places are held against each other by the values that
stand there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["find_axis", "hold_equal_values", "is_unordered", "place_result"]

# Which of a function's results are places.
_RESULTS = {
    "argmax": 0,
    "argmin": 0,
    "argsort": 0,
    "cummax": 1,
    "cummin": 1,
    "kthvalue": 1,
    "max": 1,
    "median": 1,
    "min": 1,
    "mode": 1,
    "nanmedian": 1,
    "sort": 1,
    "topk": 1,
}
# Of a whole tensor unless they are told a dimension; the others take the last one.
_OF_ALL = frozenset(("argmax", "argmin"))
# Where the number of the dimension stands among the arguments; for all others it is the second.
_DIMENSION_PLACES = {"kthvalue": 2, "topk": 2}
# They return each place once at most.
_WITHOUT_REPETITION = frozenset(("argsort", "sort", "topk"))
# Each place is one of those up to it.
_OF_WHAT_CAME_BEFORE = frozenset(("cummax", "cummin"))
_SORTED_PLACE = 4


def place_result(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return which result of a call is places of any of some equal values; None if none is.

    >>> place_result("topk", (None, 2), {}), place_result("sort", (None,), {"stable": True})
    (1, None)
    """
    # A stable sort keeps the order of equal values; a dimension may be called by a name.
    is_other = kwargs.get("stable") or isinstance(_dimension_of(operation, args, kwargs), str)
    return None if is_other else _RESULTS.get(operation)


def is_unordered(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may return what it chose in any order."""
    given = kwargs.get("sorted", args[_SORTED_PLACE] if len(args) > _SORTED_PLACE else True)
    return operation == "topk" and given is False


def find_axis(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return along which dimension places count; None if over the whole tensor.

    >>> find_axis("topk", (None, 2), {}), find_axis("topk", (None, 2, 0), {})
    (-1, 0)
    >>> find_axis("argmax", (None,), {}) is None
    True
    """
    given = _dimension_of(operation, args, kwargs)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return None if operation in _OF_ALL else -1


def _dimension_of(operation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    place = _DIMENSION_PLACES.get(operation, 1)
    return kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))


def hold_equal_values(
    operation: str, given: torch.Tensor, got: torch.Tensor, wanted: torch.Tensor, axis: int | None
) -> bool:
    """Whether the places that a call chose hold the values that the right places hold.

    Args:
        operation: the function.
        given: the tensor that it chose from.
        got: the places that it chose.
        wanted: the right ones.
        axis: along which dimension they count; None: over the whole tensor.
    """
    if got.shape != wanted.shape or got.dtype != wanted.dtype or got.dtype != torch.int64:
        return False
    if axis is None or not given.dim():
        axis = 0
        given = given.reshape(-1)
        got, wanted = got.reshape(-1), wanted.reshape(-1)
    elif got.dim() < given.dim():
        got, wanted = got.unsqueeze(axis), wanted.unsqueeze(axis)
    if got.numel() and not (int(got.min()) >= 0 and int(got.max()) < given.shape[axis]):
        return False
    if operation in _WITHOUT_REPETITION and got.shape[axis] > 1:
        ordered = got.sort(axis).values
        if bool((ordered.diff(dim=axis) == 0).any()):
            return False
    if operation in _OF_WHAT_CAME_BEFORE and got.numel():
        steps = torch.arange(got.shape[axis]).reshape([-1] + [1] * (got.dim() - 1))
        if bool((got.movedim(axis, 0) > steps).any()):
            return False
    chosen, right = given.gather(axis, got), given.gather(axis, wanted)
    is_same = chosen == right
    if given.is_floating_point() or given.is_complex():
        is_same |= chosen.isnan() & right.isnan()
    return bool(is_same.all())
