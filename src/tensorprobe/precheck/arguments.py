"""Walk through the arguments and results of a call: the tensors in them, in one fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

__all__ = ["map_leaves", "tensors_in"]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists, tuples, mappings and data classes, in order.

    >>> [tensor.item() for tensor in tensors_in([torch.tensor(1), {"a": (torch.tensor(2),)}])]
    [1, 2]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments with everything that is no list, tuple or dict put through `change`.

    >>> map_leaves([1, (2, {"a": 3})], lambda number: -number)
    [-1, (-2, {'a': -3})]
    """
    if type(value) in (list, tuple):
        return type(value)(map_leaves(item, change) for item in value)
    if type(value) is dict:
        return {key: map_leaves(item, change) for key, item in value.items()}
    return change(value)
