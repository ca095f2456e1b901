"""Say what a call would give before it is made, where its numbers could ask for too much.

    arguments ─► how many elements can they make at most? ─► few: nothing to do
                                                        └─► many: the call without data ─► how many

A size, a count or an equation out of a file costs nothing to write and may ask for any amount of
memory. Torch itself tells the result's shape on its `meta` device, where no tensor has data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
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
# Their result is a list, and each piece of it costs more than its elements.
_IN_PIECES = frozenset(
    ("chunk", "dsplit", "hsplit", "split", "split_copy", "split_with_sizes", "tensor_split",
     "tolist", "unbind", "unbind_copy", "unsafe_chunk", "unsafe_split",
     "unsafe_split_with_sizes", "vsplit", "__iter__")
)  # fmt: skip
_MOST_PIECES = 1 << 20


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
    words = name.split(".")
    if not _IN_PIECES.isdisjoint(words):
        shapes = [tensor.shape for tensor in tensors_in((list(args), dict(kwargs)))]
        largest = max((max(shape, default=1) for shape in shapes), default=1)
        if largest > _MOST_PIECES:
            raise RebuildError(f"its result may be {largest} pieces, each an object of Python's")
    most = _most_elements(args, kwargs, is_outer=not _OUTER.isdisjoint(words))
    # One number says how many rows it has, and columns.
    if has_room(most**2 if "eye" in words else most):
        return
    meta = torch.device("meta")

    def without_data(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=meta)
        return meta if isinstance(value, torch.device) else value

    named = map_leaves(dict(kwargs), without_data)
    if _takes_device(function):
        # Operators do not ask for the default one.
        named["device"] = meta
    try:
        with warnings.catch_warnings(), torch.no_grad(), meta:
            warnings.simplefilter("ignore")
            result = function(*map_leaves(args, without_data), **named)
    except REFUSALS:
        # What depends on the data cannot be told without them; the limit of the process stands.
        return
    require_room((tuple(tensor.shape) for tensor in tensors_in(result)), "its result")


def _takes_device(function: Any) -> bool:
    """Whether an operator is told where its result is to be."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads: Any = function.overloads
        return any(_takes_device(getattr(function, name)) for name in overloads())
    is_operator = isinstance(function, torch._ops.OpOverload)
    return is_operator and any(each.name == "device" for each in function._schema.arguments)


def require_inside_storage(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that looks beyond the memory of its tensors, where torch itself does not ask.

    Raises:
        RebuildError: it does.
    """
    words = name.split(".")
    for operation, check in _CHECKS.items():
        if operation in words:
            check(args, kwargs)


def _check_strides(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    names = ("self", "size", "stride", "storage_offset")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor = given.get("self", given.get("input"))
    sizes: Any = given.get("size")
    strides: Any = given.get("stride")
    if not isinstance(tensor, torch.Tensor) or not _are_integers(sizes, strides):
        raise RebuildError("a view by strides without a tensor, sizes and strides")
    start = given.get("storage_offset")
    start = start if isinstance(start, int) else tensor.storage_offset()
    if any(size == 0 for size in sizes):
        return
    reach = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=False)]
    first = start + sum(step for step in reach if step < 0)
    last = start + sum(step for step in reach if step > 0)
    beyond = (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes()
    if first < 0 or beyond or len(sizes) != len(strides):
        raise RebuildError("the dump holds the elements of a view, and the call looks beyond them")


def _check_places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Hold the places of a pooling against the tensor that was pooled: the last and the second."""
    tensors = tensors_in((list(args), dict(kwargs)))
    pooled, places = tensors[1] if len(tensors) > 2 else None, tensors[-1] if tensors else None
    dims = 3 if pooled is not None and pooled.dim() > 4 else 2
    if pooled is None or places is None or places.is_floating_point():
        raise RebuildError("the gradient of a pooling without its places")
    _require_range(places, math.prod(pooled.shape[-dims:]))


def _check_classes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    names = ("log_probs", "targets")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    scores, targets = given.get("log_probs"), given.get("targets")
    if (
        not (isinstance(scores, torch.Tensor) and isinstance(targets, torch.Tensor))
        or not scores.dim()
    ):
        raise RebuildError("a loss without scores and targets")
    _require_range(targets, scores.shape[-1])


def _require_range(places: torch.Tensor, end: int) -> None:
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < end:
        raise RebuildError(f"its indices are not within the {end} that there are")


# By a word of the operation's name.
_CHECKS: dict[str, Callable[[tuple[Any, ...], Mapping[str, Any]], None]] = {
    "_reshape_alias": _check_strides,
    "as_strided": _check_strides,
    "as_strided_": _check_strides,
    "_ctc_loss": _check_classes,
    "ctc_loss": _check_classes,
    "max_pool2d_with_indices_backward": _check_places,
    "max_pool3d_with_indices_backward": _check_places,
}


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
