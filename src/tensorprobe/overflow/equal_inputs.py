"""Inputs of a call that may have been one tensor: `h + h`, `torch.cat([h, h])`.

Autograd gives such a tensor one gradient, the sum over its places, and that is what a dump holds at
each of them. A dump does not say which tensor was which: those count whose data, or at least
numbers, are equal, and whose recorded gradients are, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

import torch

from tensorprobe.records import TensorValue, Value

__all__ = ["equal_places", "sums_over"]


def equal_places(
    values: Sequence[TensorValue],
    gradients: Sequence[Value],
    data: Sequence[torch.Tensor] | None,
) -> list[list[int]]:
    """Return the places of inputs that may have been one tensor, two or more together.

    >>> one, other = TensorValue("torch.half", (2,), max=1.0), TensorValue("torch.half", (2,))
    >>> equal_places([one, other, one], [], None)
    [[0, 2]]

    Args:
        values: what was recorded of the input tensors.
        gradients: what was recorded of their gradients, if that is known place by place.
        data: the tensors; None where the dump does not hold them.
    """
    # With fewer or more of them it is not known which belongs to which.
    are_known = len(gradients) == len(values)
    groups: list[list[int]] = []
    for place, value in enumerate(values):
        for group in groups:
            first = group[0]
            if (
                _numbers_of(value) == _numbers_of(values[first])
                and (data is None or _has_same_bytes(data[place], data[first]))
                and (
                    not are_known or _numbers_of(gradients[place]) == _numbers_of(gradients[first])
                )
            ):
                group.append(place)
                break
        else:
            groups.append([place])
    return [group for group in groups if len(group) > 1]


def sums_over(
    groups: Sequence[Sequence[int]], gradients: Mapping[int, torch.Tensor | None]
) -> list[torch.Tensor]:
    """Return the sum of the gradients over each group, made in their own dtype as autograd does.

    Args:
        groups: places of inputs that may have been one tensor.
        gradients: of the inputs by their place; None where none arrived.
    """
    sums = []
    for group in groups:
        found = [one for place in group if (one := gradients.get(place)) is not None]
        if len(found) > 1:
            sums.append(functools.reduce(operator.add, found))
    return sums


def _numbers_of(value: Value) -> str:
    """Return what a description says of the numbers in a tensor; as text, for NaN is not NaN."""
    if not isinstance(value, TensorValue):
        return ""
    numbers = (value.max, value.min, value.mean, value.norm, value.checksum)
    return repr((value.dtype, value.shape, value.requires_grad, value.form, numbers))


def _has_same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    first, second = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)
