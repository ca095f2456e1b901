"""Turn what a call was given and what it returned into values of a record.

A tensor becomes what the recorder makes of it; everything else is final at once.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from tensorprobe.records import (
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    UnknownValue,
    Value,
)
from tensorprobe.system.interrupts import is_raised_by_handler

__all__ = ["KNOWN_INTS", "Drafted", "describe", "tensors_in", "values_of"]

_DEEPEST = 20
# Down to here a value that stands in several places is described in each.
_SHALLOW = 6
_LONGEST_TEXT = 200
_SCALARS = frozenset((bool, int, float, complex, str))
KNOWN_INTS: dict[int, ScalarValue] = {}
"""Dimensions and sizes, the same in every step."""
_MOST_KNOWN = 4096

Drafted = Any
"""A value that may hold drafts in place of tensors."""

OnTensor = Callable[[torch.Tensor, tuple[str, ...]], Drafted]


def describe(
    value: Any, on_tensor: OnTensor, path: tuple[str, ...] = (), met: set[int] | None = None
) -> Drafted:
    """Describe one value, nested or not; `on_tensor` describes each tensor in it.

    Args:
        value: what a call was given or returned.
        on_tensor: gets each tensor in it and the parts of its name.
        path: the parts of the value's own name; those of values inside it come behind them.
        met: the values deep inside that were described already, by their ids.
    """
    if value is None:
        return None
    kind = type(value)
    if kind in _SCALARS:
        if kind is not int:
            return ScalarValue(kind.__name__, value)
        known = KNOWN_INTS.get(value)
        if known is None:
            known = ScalarValue("int", value)
            if len(KNOWN_INTS) < _MOST_KNOWN:
                KNOWN_INTS[value] = known
        return known
    if isinstance(value, torch.Tensor):
        return on_tensor(value, path)
    met = set() if met is None else met
    if len(path) > _SHALLOW:
        if len(path) > _DEEPEST:
            return UnknownValue(kind.__name__, "nested too deeply")
        # The ways through objects that hold each other are too many to go.
        if id(value) in met:
            return UnknownValue(kind.__name__, "described before")
        met.add(id(value))
    if kind in (list, tuple):
        items = tuple(
            describe(item, on_tensor, (*path, str(i)), met) for i, item in enumerate(value)
        )
        return ListValue(items, is_tuple=kind is tuple)
    return _describe_rest(value, on_tensor, path, met)


def _describe_rest(
    value: Any, on_tensor: OnTensor, path: tuple[str, ...], met: set[int]
) -> Drafted:
    if isinstance(value, torch.Size):
        return SizeValue(tuple(value))
    if isinstance(value, torch.dtype):
        return DtypeValue(str(value))
    if isinstance(value, torch.device):
        # As the older tools word it.
        return DeviceValue(f"{value.type}:{value.index}")
    if isinstance(value, torch.memory_format):
        return MemoryFormatValue(str(value).removeprefix("torch."))
    if isinstance(value, torch.layout):
        return UnknownValue("layout", str(value))
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        if all(part is None or isinstance(part, int) for part in parts):
            return SliceValue(*parts)
        return UnknownValue("slice", str(value))
    if value is ...:
        return EllipsisValue()
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, complex, str)):
        return ScalarValue(type(value).__name__, value.item())
    if isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum):
        return ScalarValue(type(value).__name__, value)
    if isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type)):
        named = _named_items(value)
        if isinstance(named, str):
            return UnknownValue(type(value).__name__, f"it cannot be looked into ({named})")
        return DictValue(
            tuple((str(k), describe(v, on_tensor, (*path, str(k)), met)) for k, v in named)
        )
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return DictValue(tuple((k, describe(v, on_tensor, (*path, k), met)) for k, v in pairs))
    if isinstance(value, (list, tuple)):
        # torch's own results with names are plain tuples to the older tools.
        items = tuple(
            describe(item, on_tensor, (*path, str(i)), met) for i, item in enumerate(value)
        )
        return ListValue(items, is_tuple=isinstance(value, tuple))
    if torch.distributed.is_available():
        return _describe_distributed(value, on_tensor, path)
    return UnknownValue(type(value).__name__)


def _named_items(value: Any) -> list[tuple[Any, Any]] | str:
    """Return what a mapping or a dataclass holds; or why it does not say, as one half made."""
    try:
        if isinstance(value, Mapping):
            return list(value.items())
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    except Exception as err:
        if is_raised_by_handler(err):
            raise
        # Whatever the user's class does; the record says so.
        return f"{type(err).__name__}: {err}"[:_LONGEST_TEXT]


def _describe_distributed(value: Any, on_tensor: OnTensor, path: tuple[str, ...]) -> Drafted:
    distributed = torch.distributed
    if isinstance(value, distributed.ProcessGroup):
        return _describe_group(value)
    if isinstance(value, distributed.ReduceOp):
        # Either one of its constants, or an object around one.
        return ReduceOpValue(str(getattr(value, "op", value)))
    if isinstance(value, distributed.P2POp):
        group = _describe_group(value.group)
        return PeerOpValue(
            value.op.__name__,
            value.peer,
            value.tag,
            group.group_id if isinstance(group, GroupValue) else "",
            describe(value.tensor, on_tensor, path),
        )
    return UnknownValue(type(value).__name__)


def _describe_group(group: Any) -> Value:
    try:
        ranks = torch.distributed.get_process_group_ranks(group)
    except (KeyError, RuntimeError, ValueError):
        # Destroyed, or made without torch's knowledge.
        return UnknownValue(type(group).__name__)
    # As the older tools name it: the same on all its ranks and in every run.
    return GroupValue(tuple(ranks), f"{zlib.crc32(str(list(ranks)).encode()):08x}")


def values_of(result: Any) -> tuple[Any, ...]:
    """Return the values that a function returned: one, or those of a tuple.

    torch's own results with names, as of torch.max, are such tuples. A named tuple of the user's
    and a size are one value.

    >>> len(values_of(torch.max(torch.ones(2, 3), dim=1))), len(values_of(torch.Size([2, 3])))
    (2, 1)
    """
    if type(result) is tuple:
        return result
    # Of those that Python calls struct sequences.
    if isinstance(result, tuple) and hasattr(type(result), "n_sequence_fields"):
        return tuple(result)
    return (result,)


def tensors_in(value: Any, depth: int = 0, met: set[int] | None = None) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and mappings, in order.

    Args:
        value: whatever it is.
        depth: how deep in another value it stands.
        met: the values deep inside that were looked into already, by their ids.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return [value]
    if value is None or kind in _SCALARS or depth > _DEEPEST:
        return []
    home = value
    if kind is tuple or kind is list:
        # Nearly always, and all other questions are slow.
        pass
    elif isinstance(value, torch.Tensor):
        return [value]
    elif isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type)):
        named = _named_items(value)
        value = () if isinstance(named, str) else [item for _, item in named]
    elif not isinstance(value, (list, tuple)):
        return []
    if depth >= _SHALLOW and met is not None:
        if id(home) in met:
            return []
        met.add(id(home))
    found: list[torch.Tensor] = []
    for item in value:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif item is not None and type(item) not in _SCALARS:
            met = set() if met is None else met
            found += tensors_in(item, depth + 1, met)
    return found
