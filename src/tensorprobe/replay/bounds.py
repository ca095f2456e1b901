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

__all__ = ["require_bounded_result"]

# Their result may have as many elements as the product of those of all their tensors. Elsewhere a
# result is allocated whole, and the limit of the process refuses it before it is touched.
_OUTER = frozenset(
    ("cartesian_prod", "cdist", "chain_matmul", "combinations", "einsum", "ger", "inner", "kron",
     "meshgrid", "multi_dot", "outer", "tensordot", "vander")
)  # fmt: skip
_BITS = 64
# Their result is a list, and each piece of it costs more than its elements: one for each place of a
# dimension, or as many as they are told, or of the size that they are told.
_FOR_EACH = frozenset(("__iter__", "tolist", "unbind", "unbind_copy"))
_SO_MANY = frozenset(("chunk", "dsplit", "hsplit", "tensor_split", "unsafe_chunk", "vsplit"))
_OF_SIZE = frozenset(("split", "split_copy", "unsafe_split"))
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
    pieces = _count_pieces(words, args, kwargs)
    if pieces > _MOST_PIECES:
        raise RebuildError(f"its result may be {pieces} pieces, each an object of Python's")
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


def _count_pieces(words: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return how many tensors or numbers a call may give, at most; 0 where it is no list."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in((list(args), dict(kwargs)))]
    longest = max((max(shape, default=1) for shape in shapes), default=1)
    told = next((value for value in (*args[1:], *kwargs.values()) if type(value) is int), 1)
    if not _FOR_EACH.isdisjoint(words):
        return longest
    if not _SO_MANY.isdisjoint(words):
        return told
    return longest // max(told, 1) if not _OF_SIZE.isdisjoint(words) else 0


def _takes_device(function: Any) -> bool:
    """Whether an operator is told where its result is to be."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads: Any = function.overloads
        return any(_takes_device(getattr(function, name)) for name in overloads())
    is_operator = isinstance(function, torch._ops.OpOverload)
    return is_operator and any(each.name == "device" for each in function._schema.arguments)


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
