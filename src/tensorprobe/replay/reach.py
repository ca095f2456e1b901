"""Refuse calls that look beyond the memory of their tensors, where torch itself does not ask.

A few operations take places in memory as numbers: strides, or indices that another operation found.
Their kernels trust them. A file's are held against the tensor first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.replay.arguments import tensors_in

__all__ = ["require_inside_storage"]


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
