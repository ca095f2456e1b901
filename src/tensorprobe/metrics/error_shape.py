"""The shape of the error between two tensors: few elements or all, one factor, fewer bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import significant_bits
from tensorprobe.tensor_data import TensorData

__all__ = ["ErrorShape", "measure_error_shape"]

# So many elements do not end in zeros by chance.
_ENOUGH = 8
# TF32 has those of float16, the longest type that is shorter than float32.
_SHORTER = (significant_bits("torch.bfloat16"), significant_bits("torch.float16"))
_FLOAT32 = significant_bits("torch.float32")
_PIECE = 1 << 15

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """What the elements of a tensor show of its error.

    Attributes:
        unequal: how many differ at all.
        nonfinite: how many are NaN or infinite where the reference is not.
        beyond: how many are further off than the bound.
        largest: the largest error of an element; infinite where one is not finite.
        relative: the norm of the error over that of the reference.
        scale: the part of the error that is a multiple of the reference.
        worst: the place of the element that is furthest off, in C order.
        got: the candidate's value there.
        wanted: the reference's.
        bits: the significant bits that all elements of a float32 tensor get by with, where that is
            those of a shorter type; else 0.
        reference_bits: the same of the reference.
    """

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
    bound = allowed * _largest(theirs)
    unequal = nonfinite = beyond = 0
    squares = products = errors = 0.0
    furthest, worst = 0.0, 0
    # In pieces that stay in the processor's cache.
    for start in range(0, ours.size, _PIECE):
        mine, other = ours[start : start + _PIECE], theirs[start : start + _PIECE]
        got, wanted = mine.astype(np.float64), other.astype(np.float64)
        if np.array_equal(mine, other) and np.isfinite(norm := float(wanted @ wanted)):
            squares += norm
            continue
        differs = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
        finite = np.isfinite(got) & np.isfinite(wanted)
        lost = np.isfinite(wanted) & ~np.isfinite(got)
        sizes = np.where(finite, wanted, 0.0)
        error = np.subtract(got, wanted, out=np.zeros_like(got), where=finite)
        distances = np.abs(error)
        unequal += int(np.count_nonzero(differs))
        nonfinite += int(np.count_nonzero(lost))
        beyond += int(np.count_nonzero(distances > bound))
        squares += float(sizes @ sizes)
        products += float(error @ sizes)
        errors += float(error @ error)
        distances[lost] = math.inf
        place = int(distances.argmax())
        if float(distances[place]) > furthest:
            furthest, worst = float(distances[place]), start + place
    relative = math.sqrt(errors / squares) if squares else math.inf if errors else 0.0
    return ErrorShape(
        unequal=unequal,
        nonfinite=nonfinite,
        beyond=beyond,
        largest=furthest,
        relative=math.inf if nonfinite else relative,
        scale=products / squares if squares else 0.0,
        worst=worst,
        got=float(ours[worst]),
        wanted=float(theirs[worst]),
        bits=_kept_bits(ours),
        reference_bits=_kept_bits(theirs),
    )


def _largest(values: _Array) -> float:
    """Return the size of the largest element that is finite."""
    largest = 0.0
    for start in range(0, values.size, _PIECE):
        sizes = np.abs(values[start : start + _PIECE].astype(np.float64))
        largest = max(largest, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)))
    return largest


def _kept_bits(values: _Array) -> int:
    if values.dtype != np.float32 or np.count_nonzero(values) < _ENOUGH:
        return 0
    used = 0
    for start in range(0, values.size, _PIECE):
        piece = np.ascontiguousarray(values[start : start + _PIECE]).view(np.uint32)
        used |= int(np.bitwise_or.reduce(piece))
        if used & _bits_beyond(_SHORTER[-1]):
            return 0
    return next(bits for bits in _SHORTER if not used & _bits_beyond(bits))


def _bits_beyond(bits: int) -> int:
    """Return a mask of the bits of a float32 that a type of so many significant bits lacks."""
    return (1 << (_FLOAT32 - bits)) - 1
