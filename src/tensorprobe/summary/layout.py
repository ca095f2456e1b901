"""Which elements of memory a tensor shows."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import NamedTuple

import torch

__all__ = ["MemoryOrder", "memory_order", "merge_layout", "merged_layout"]


def merged_layout(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Return which elements of memory a tensor shows, in no order: pairs of stride and size.

    Tensors with the same first element and the same layout show the same elements.

    >>> merged_layout(torch.empty(2, 3, 4).transpose(0, 2))
    ((1, 24),)
    >>> merged_layout(torch.empty(5, 9)[:, :3])
    ((1, 3), (9, 5))
    """
    return merge_layout(tensor.stride(), tensor.shape)


# A step has few layouts, each of them many times.
@functools.lru_cache(maxsize=4096)
def merge_layout(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return what `merged_layout` returns for a tensor of these strides and this shape."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return tuple(merged)


class MemoryOrder(NamedTuple):
    """How the elements of a tensor follow each other in memory, where that is not C order.

    Attributes:
        axes: its axes, from the one with the longest steps to the one with the shortest.
        strides: the strides of its elements once they are written one after the other.
    """

    axes: tuple[int, ...]
    strides: tuple[int, ...]


# Asked of tensors that do not lie in C order.
@functools.lru_cache(maxsize=4096)
def memory_order(strides: tuple[int, ...], shape: tuple[int, ...]) -> MemoryOrder | None:
    """Return the order of the elements in memory; None where that is C order, or there is none.

    >>> memory_order((1, 4), (4, 3))
    MemoryOrder(axes=(1, 0), strides=(1, 4))
    >>> memory_order((9, 1), (5, 3)), memory_order((0, 1), (5, 3))
    (None, None)
    """
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    laid = sorted(wide, key=lambda axis: -strides[axis])
    if laid == wide or not strides[laid[-1]]:
        return None
    if any(strides[one] < strides[other] * shape[other] for one, other in pairwise(laid)):
        return None  # elements share memory
    compact = [1] * len(shape)
    step = 1
    for axis in reversed(laid):
        compact[axis] = step
        step *= shape[axis]
    narrow = [axis for axis, size in enumerate(shape) if size <= 1]
    return MemoryOrder((*narrow, *laid), tuple(compact))
