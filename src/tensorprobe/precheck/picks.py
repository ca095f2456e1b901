"""One result of a side: which it is, and how it is compared."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorprobe.replay.side import Side
from tensorprobe.summary.host import fetch

__all__ = [
    "Pick",
    "as_compared",
    "norm",
    "on_cpu",
    "pick_from",
    "pick_gradient",
    "pick_output",
    "pick_written",
]

Pick = Callable[[Side], "torch.Tensor | None"]
"""Returns one result of a side."""

_SPARSE = frozenset(
    (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
)


def pick_output(index: int) -> Pick:
    """Return what picks an output."""
    return lambda side: side.outputs[index] if index < len(side.outputs) else None


def pick_written(index: int) -> Pick:
    """Return what picks an input that was written into."""
    return lambda side: side.written.get(index)


def pick_gradient(index: int) -> Pick:
    """Return what picks the gradient of an input."""
    return lambda side: side.gradients.get(index)


def pick_from(side: Side | None, pick: Pick) -> torch.Tensor | None:
    """Return one result of a side as it is compared; None where there is none."""
    found = None if side is None else pick(side)
    return None if found is None else as_compared(found)


def norm(tensor: torch.Tensor) -> float:
    """Return the Euclidean norm; 0 where it is not a number."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor, dtype=wide).nan_to_num_())


def on_cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a result on the host, as it is."""
    return None if tensor is None else fetch(tensor.detach())


def as_compared(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor as it is compared: on the host, its numbers where they seem to be."""
    if tensor.layout in _SPARSE:
        tensor = tensor.detach().to_dense()
    if tensor.layout is not torch.strided:
        return None
    if tensor._is_zerotensor():
        # It has no memory that could be looked at.
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return fetch(tensor.detach()).resolve_conj().resolve_neg()
