"""Numbers about the errors of a candidate, each held against the rounded reference.

    mean size of the reference ─► pieces ─► threads: kernel ─► PieceErrors, added up

What `pair.py` measures says how far two arrays are apart; this says how the errors are spread:
their sign, their places in the last digit, how large the worst one is for its element.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DType
from tensorprobe.metrics.kernel import Kernel, load_kernel
from tensorprobe.metrics.pair_layout import align_pair
from tensorprobe.metrics.pair_pieces import over_pieces
from tensorprobe.tensor_data import TensorData

__all__ = ["ErrorLimits", "PieceErrors", "measure_errors", "measures_errors"]

_CANDIDATES = ("torch.float32", "torch.bfloat16", "torch.float16")
_REFERENCES = (*_CANDIDATES, "torch.float64")


class ErrorLimits(NamedTuple):
    """What errors are held against.

    Attributes:
        mean_size: the root mean square of the reference, not 0.
        small: a reference below this is small.
        small_error: what the error of a small one may be.
        most_places: errors of more units in the last place are counted.
    """

    mean_size: float
    small: float
    small_error: float
    most_places: int


class PieceErrors(NamedTuple):
    """What is known of the errors; pairs that are not finite on both sides are left out.

    Attributes:
        pairs: how many were looked at.
        lean: how many candidates are above the reference, less how many are below.
        nonzero: how many references are not 0.
        small: how many references are small.
        small_wrong: how many of these have too large an error.
        places_over: how many errors are of more units in the last place than allowed.
        places: all errors in units of the last place.
        places_max: the largest one.
        worst: the largest error over the size of its reference and the mean size together.
        relative: the sum of all errors over their references, where these are not 0.
    """

    pairs: int
    lean: int
    nonzero: int
    small: int
    small_wrong: int
    places_over: int
    places: int
    places_max: int
    worst: float
    relative: float


def measures_errors(candidate: DType, reference: DType) -> bool:
    """Whether the errors of such a pair can be measured: by the kernel alone, and of floats."""
    return (
        candidate.name in _CANDIDATES
        and reference.name in _REFERENCES
        and candidate.itemsize <= reference.itemsize
        and (candidate.name == reference.name or reference.itemsize > 2)
        and load_kernel() is not None
    )


def measure_errors(
    candidate: TensorData, reference: TensorData, limits: ErrorLimits, *, threads: int = 0
) -> PieceErrors:
    """Return the numbers about the errors of a candidate.

    Args:
        candidate: the tensor under test.
        reference: as many elements; they are rounded to the candidate's dtype.
        limits: what errors are held against.
        threads: how many threads may work; 0 for all cores of this process.

    Raises:
        ValueError: the numbers of elements differ, or such a pair cannot be measured.
    """
    kernel = load_kernel()
    if kernel is None or not measures_errors(candidate.dtype, reference.dtype):
        names = f"{candidate.dtype.name} and {reference.dtype.name}"
        raise ValueError(f"the errors of {names} cannot be measured here")
    if candidate.array.size != reference.array.size:
        raise ValueError(
            f"got {candidate.array.size} and {reference.array.size} elements, wanted as many"
        )
    types = [side.dtype.name.removeprefix("torch.") for side in (candidate, reference)]

    def measure_piece(_start: int, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> PieceErrors:
        return _measure_piece(kernel, a, types[0], b, types[1], limits)

    layout = align_pair(candidate.array, reference.array)
    parts = over_pieces(layout, measure_piece, threads)
    return parts[0] if len(parts) == layout.repeats == 1 else _add_up(parts, layout.repeats)


def _measure_piece(
    kernel: Kernel,
    candidate: npt.NDArray[Any],
    candidate_type: str,
    reference: npt.NDArray[Any],
    reference_type: str,
    limits: ErrorLimits,
) -> PieceErrors:
    a = np.ascontiguousarray(candidate)
    b = np.ascontiguousarray(reference)
    return PieceErrors(
        *kernel.measure_errors(
            a.ctypes.data, candidate_type, b.ctypes.data, reference_type, a.size, *limits
        )
    )


def _add_up(parts: list[PieceErrors], times: int) -> PieceErrors:
    """Return the numbers of all pieces together, of which each is seen so many times."""
    return PieceErrors(
        pairs=times * sum(part.pairs for part in parts),
        lean=times * sum(part.lean for part in parts),
        nonzero=times * sum(part.nonzero for part in parts),
        small=times * sum(part.small for part in parts),
        small_wrong=times * sum(part.small_wrong for part in parts),
        places_over=times * sum(part.places_over for part in parts),
        places=times * sum(part.places for part in parts),
        places_max=max(part.places_max for part in parts),
        worst=max(part.worst for part in parts),
        relative=times * math.fsum(part.relative for part in parts),
    )
