"""Which elements of memory a tensor shows."""

from __future__ import annotations

import torch

__all__ = ["merged_layout"]


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
