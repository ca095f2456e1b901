"""The shape of the error between two tensors: few elements or all, one factor, fewer bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorprobe.tensor_data import TensorData

__all__ = ["ErrorShape", "measure_error_shape"]

# So many elements do not end in zeros by chance.
_ENOUGH = 8

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """What the elements of a tensor show of its error.

    Attributes:
        count: how many elements there are.
        unequal: how many differ at all.
        nonfinite: how many are NaN or infinite where the reference is not.
        beyond: how many are further off than the bound.
        largest: the largest error of an element.
        relative: the norm of the error over that of the reference.
        scale: the part of the error that is a multiple of the reference.
        worst: the place of the element that is furthest off, in C order.
        got: the candidate's value there.
        wanted: the reference's.
        bits: the significant bits that all elements of a float32 tensor get by with, where that is
            those of a shorter type; else 0.
        reference_bits: the same of the reference.
    """

    count: int
    unequal: int
    nonfinite: int
    beyond: int
    largest: float
    relative: float
    scale: float
    worst: int
    got: float
    wanted: float
    bits: int
    reference_bits: int


def measure_error_shape(
    candidate: TensorData, reference: TensorData, allowed: float
) -> ErrorShape | None:
    """Return the shape of the error, or None of complex, empty or differently shaped tensors.

    Args:
        candidate: the tensor under test.
        reference: what it should be.
        allowed: how far off an element may be, relative to the largest of the reference.
    """
    ours, theirs = candidate.values().reshape(-1), reference.values().reshape(-1)
    if candidate.shape != reference.shape or not ours.size:
        return None
    if np.iscomplexobj(ours) or np.iscomplexobj(theirs):
        return None
    got, wanted = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(wanted)
    nonfinite = ~np.isfinite(got) & np.isfinite(wanted)
    error = np.subtract(got, wanted, out=np.zeros_like(got), where=finite)
    sizes = np.where(finite, wanted, 0.0)
    squares = float((sizes * sizes).sum())
    distances = np.abs(error)
    worst = int((nonfinite if nonfinite.any() else distances).argmax())
    norm = float(np.linalg.norm(error))
    relative = norm / math.sqrt(squares) if squares else math.inf if norm else 0.0
    return ErrorShape(
        got.size,
        int(((got != wanted) & ~(np.isnan(got) & np.isnan(wanted))).sum()),
        int(nonfinite.sum()),
        int((distances > allowed * float(np.abs(sizes).max())).sum()),
        float(distances.max()),
        math.inf if nonfinite.any() else relative,
        float((error * sizes).sum()) / squares if squares else 0.0,
        worst,
        float(got[worst]),
        float(wanted[worst]),
        _kept_bits(ours),
        _kept_bits(theirs),
    )


def _kept_bits(values: _Array) -> int:
    if values.dtype != np.float32 or np.count_nonzero(values) < _ENOUGH:
        return 0
    words = np.ascontiguousarray(values).view(np.uint32)
    for bits in (8, 11):
        if not (words & ((1 << (24 - bits)) - 1)).any():
            return bits
    return 0
