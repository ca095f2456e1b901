"""Say what a call would give before it is made, where its numbers could ask for too much.

    arguments ─► how many elements can they make at most? ─► few: nothing to do
                                                        └─► many: the call without data ─► how many

A size, a count or an equation out of a file costs nothing to write and may ask for any amount of
memory. Torch itself tells the result's shape on its `meta` device, where no tensor has data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tensorprobe.errors import RebuildError
from tensorprobe.replay.arguments import map_leaves, tensors_in
from tensorprobe.replay.memory import has_room, require_room
from tensorprobe.replay.refusals import REFUSALS

__all__ = ["require_bounded_result", "require_inside_storage"]

# Their result may have as many elements as the product of those of all their tensors. Elsewhere a
# result is allocated whole, and the limit of the process refuses it before it is touched.
_OUTER = frozenset(
    ("cartesian_prod", "cdist", "chain_matmul", "combinations", "einsum", "ger", "inner", "kron",
     "meshgrid", "multi_dot", "outer", "tensordot", "vander")
)  # fmt: skip
_BITS = 64
# They take sizes, strides and an offset, and not all check them against the memory behind.
_VIEWS_BY_STRIDES = frozenset(("_reshape_alias", "as_strided", "as_strided_"))


def require_bounded_result(
    name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a call whose result is larger than one call may have.

    Args:
        name: of the API.
        function: what is called.
        args: its arguments in order.
        kwargs: those that are given by name.

    Raises:
        RebuildError: it is; or an integer among the arguments is larger than any that torch takes.
    """
    is_outer = name.rpartition(".")[2] in _OUTER
    if has_room(_most_elements(args, kwargs, is_outer=is_outer)):
        return
    meta = torch.device("meta")

    def without_data(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=meta)
        return meta if isinstance(value, torch.device) else value

    try:
        with warnings.catch_warnings(), torch.no_grad(), meta:
            warnings.simplefilter("ignore")
            result = function(
                *map_leaves(args, without_data), **map_leaves(dict(kwargs), without_data)
            )
    except REFUSALS:
        # What depends on the data cannot be told without them; the limit of the process stands.
        return
    require_room((tuple(tensor.shape) for tensor in tensors_in(result)), "its result")


def require_inside_storage(name: str, args: tuple[Any, ...]) -> None:
    """Refuse a view by strides that leaves the memory of the tensor that it looks at.

    Raises:
        RebuildError: it does.
    """
    if name.partition(".")[0] not in _VIEWS_BY_STRIDES or len(args) < 3:
        return
    tensor, sizes, strides = args[:3]
    if not isinstance(tensor, torch.Tensor) or not _are_integers(sizes, strides):
        return
    start = args[3] if len(args) > 3 and isinstance(args[3], int) else tensor.storage_offset()
    if any(size == 0 for size in sizes):
        return
    reach = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=False)]
    first = start + sum(step for step in reach if step < 0)
    last = start + sum(step for step in reach if step > 0)
    if first < 0 or (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise RebuildError("the dump holds the elements of a view, and the call looks beyond them")


def _are_integers(*lists: Any) -> bool:
    return all(
        isinstance(numbers, (list, tuple)) and all(type(n) is int for n in numbers)
        for numbers in lists
    )


def _most_elements(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_outer: bool) -> int:
    """Return a number that the elements of a result do not exceed: the product of all sizes.

    Of the tensors the largest counts, or each one where the result may be their outer product.

    Raises:
        RebuildError: a number has more bits than any of torch.
    """
    most = largest = 1

    def count(value: Any) -> None:
        nonlocal most, largest
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, torch.Tensor):
            size = max(value.numel(), 1)
            largest = largest * size if is_outer else max(largest, size)
        elif isinstance(value, torch.Size):
            most *= math.prod(max(size, 1) for size in value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if isinstance(value, int) and value.bit_length() > _BITS:
                raise RebuildError("an argument is an integer of more bits than torch can take")
            if abs(value) > 1 and math.isfinite(value):
                most *= math.ceil(abs(value))
        # What is larger need not be known more exactly.
        most = min(most, 1 << 128)

    map_leaves([list(args), dict(kwargs)], count)
    return most * largest
