"""What the arguments of a call tell of it beyond its name: does it write, must its dtype stay."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from tensorprobe.operations.facts import OWN_DTYPE, Fact
from tensorprobe.operations.spelling import writes_by_name

__all__ = ["is_in_place", "needs_recorded_dtype"]

_BITS = Fact("view view_dtype")
_LOGITS = Fact("logit logit_backward")


def needs_recorded_dtype(api_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a result means something else in a wider dtype, so that none is to be used."""
    if api_name in OWN_DTYPE:
        return True
    given = (*args, *kwargs.values())
    if api_name in _LOGITS:
        # 1 - 1e-6 is another number in float32.
        return any(isinstance(value, float) for value in given)
    return api_name in _BITS and any(isinstance(value, torch.dtype) for value in given)


def is_in_place(
    function: Callable[..., Any], api_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call writes into a tensor that it was given, as far as its name tells."""
    if writes_by_name(api_name):
        return True
    if kwargs.get("out") is not None or _is_set(kwargs.get("inplace")):
        return True
    if isinstance(function, torch._ops.OpOverload):
        return bool(function._schema.is_mutable)
    place = _place_of_inplace(function)
    return place is not None and len(args) > place and _is_set(args[place])


def _is_set(flag: object) -> bool:
    # A tensor in its place is neither; the call itself will be refused.
    return isinstance(flag, (bool, int)) and bool(flag)


@cache
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    if not inspect.isfunction(function):
        return None
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        # A wrapper around a builtin, which has no names.
        return None
    return names.index("inplace") if "inplace" in names else None
