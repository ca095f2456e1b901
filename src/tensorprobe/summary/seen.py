"""Remember what was measured of which memory, so that no memory is measured twice.

The output of one call is the input of the next, and a view shows the memory of its base. What was
measured holds as long as the memory is alive and nobody has written into it: the tensor that owns
it is there, and its version, which its views share, is the same.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

import torch

__all__ = ["SeenMemory", "merged_layout"]

Found = TypeVar("Found")

# Past this many, those of freed memory are dropped.
_MANY = 4096


class SeenMemory(Generic[Found]):
    """What was found about pieces of memory.

    Args:
        is_ordered: whether the order of the elements matters, as for a checksum.
    """

    def __init__(self, *, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self._entries: dict[Any, tuple[weakref.ref[torch.Tensor], int, Found]] = {}
        self._limit = _MANY

    def find(self, tensor: torch.Tensor) -> Found | None:
        """Return what `keep` was told about the memory that a tensor shows now."""
        entry = self._entries.get(self._key(tensor))
        if entry is None:
            return None
        owner = tensor._base
        # The allocator hands freed addresses out again: the owner must be the same object.
        if entry[0]() is not (tensor if owner is None else owner) or entry[1] != tensor._version:
            return None
        return entry[2]

    def keep(self, tensor: torch.Tensor, found: Found) -> None:
        """Remember what was found of a tensor as it is now."""
        if tensor.is_inference():
            # It has no version, so nobody knows when it changes.
            return
        if len(self._entries) >= self._limit:
            self._entries = {k: e for k, e in self._entries.items() if e[0]() is not None}
            self._limit = max(_MANY, 2 * len(self._entries))
        owner = tensor._base
        alive = weakref.ref(tensor if owner is None else owner)
        self._entries[self._key(tensor)] = (alive, tensor._version, found)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def _key(self, tensor: torch.Tensor) -> Any:
        if tensor.is_conj() or tensor.is_neg():
            flips = (tensor.is_conj(), tensor.is_neg())
            return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, flips)
        if tensor.is_contiguous():
            return (tensor.data_ptr(), tensor.numel(), tensor.dtype)
        if self._is_ordered:
            return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        layout = merged_layout(tensor)
        if len(layout) == 1 and layout[0][0] == 1:
            return (tensor.data_ptr(), layout[0][1], tensor.dtype)
        return (tensor.data_ptr(), layout, tensor.dtype)


def merged_layout(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Return which elements of memory a tensor shows, in no order: pairs of stride and size.

    Tensors with the same first element and the same layout show the same elements.

    >>> merged_layout(torch.empty(2, 3, 4).transpose(0, 2))
    ((1, 24),)
    >>> merged_layout(torch.empty(5, 9)[:, :3])
    ((1, 3), (9, 5))
    """
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return tuple(merged)
