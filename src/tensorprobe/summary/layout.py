"""Which elements of memory a tensor shows."""

from __future__ import annotations

import functools

import torch

__all__ = ["merge_layout", "merged_layout"]


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
