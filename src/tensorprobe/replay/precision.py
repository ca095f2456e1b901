"""One precision up: what the reference side computes in.

All floating-point tensors of a call go to one dtype, because kernels refuse mixtures that the
recorded dtypes did not have: float32 where all of them are narrower, else float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensorprobe.replay.arguments import map_leaves
from tensorprobe.replay.rebuild import RebuiltCall

__all__ = [
    "is_raisable",
    "raise_dtype",
    "raise_tensor",
    "reference_dtype",
    "round_to",
    "with_dtypes",
    "with_own_epsilon",
]

_HALVES = (torch.float16, torch.bfloat16)
_COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}
# The 8-bit floats stay: what takes them takes nothing else, and every value of theirs is exact.
_RAISED = frozenset(
    (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex32,
        torch.complex64,
        torch.complex128,
    )
)


def is_raisable(dtype: torch.dtype) -> bool:
    """Whether the reference side computes with another dtype than this one."""
    return dtype in _RAISED


def reference_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the real dtype in which a call with these dtypes is computed for reference.

    >>> reference_dtype([torch.bfloat16, torch.int64])
    torch.float32
    >>> reference_dtype([torch.bfloat16, torch.float32])
    torch.float64
    """
    floats = [dtype for dtype in dtypes if dtype in _RAISED]
    is_narrow = bool(floats) and all(dtype in (*_HALVES, torch.complex32) for dtype in floats)
    return torch.float32 if is_narrow else torch.float64


def raise_tensor(tensor: torch.Tensor, real: torch.dtype) -> torch.Tensor:
    """Return a copy of a tensor in the reference's dtype, on the CPU."""
    return tensor.detach().to("cpu", raise_dtype(tensor.dtype, real), copy=True)


def raise_dtype(dtype: torch.dtype, real: torch.dtype) -> torch.dtype:
    """Return the dtype that takes a dtype's place on the reference side."""
    if dtype not in _RAISED:
        return dtype
    return _COMPLEX_OF[real] if dtype.is_complex else real


def round_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a precise result is in a narrower dtype: the best that dtype can hold."""
    if tensor.dtype == dtype:
        return tensor
    if tensor.is_complex() and not dtype.is_complex:
        return tensor
    return tensor.to(dtype)


def with_dtypes(call: RebuiltCall, change: Callable[[torch.dtype], torch.dtype]) -> RebuiltCall:
    """Return a call with other dtypes among its arguments."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, torch.dtype) else value

    return replace(
        call, args=map_leaves(call.args, changed), kwargs=map_leaves(dict(call.kwargs), changed)
    )


def with_own_epsilon(call: RebuiltCall, api_name: str, base: Sequence[torch.Tensor]) -> RebuiltCall:
    """Give `rms_norm` the epsilon of the recorded dtype, which it takes from its input."""
    if api_name.rpartition(".")[2] != "rms_norm" or not base:
        return call
    if call.kwargs.get("eps") is None and len(call.args) < 4:
        epsilon = torch.finfo(base[0].dtype).eps
        return replace(call, kwargs={**call.kwargs, "eps": epsilon})
    return call
