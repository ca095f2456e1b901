"""Walk through the arguments and results of a call: the tensors in them, in one fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

__all__ = ["map_leaves", "tensors_in"]


# What most arguments are, and no tensor is in.
_PLAIN = frozenset((int, float, bool, str, type(None), complex, torch.dtype, torch.device))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples, mappings and data classes, in order.

    >>> [tensor.item() for tensor in tensors_in([torch.tensor(1), {"a": (torch.tensor(2),)}])]
    [1, 2]
    """
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif type(value) in _PLAIN:
        return
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _collect(getattr(value, field.name), found)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with everything that is no list, tuple or dict put through `change`.

    >>> map_leaves([1, (2, {"a": 3})], lambda number: -number)
    [-1, (-2, {'a': -3})]
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_leaves(item, change) for item in value])
    if kind is dict:
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)
