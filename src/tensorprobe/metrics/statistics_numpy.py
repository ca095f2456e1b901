"""What the compiled kernel computes, in numpy: its fallback and the oracle of its tests.

Both work on one piece of an array at a time, of a few MiB at most, and know nothing of dtypes that
numpy lacks; `statistics.py` cuts the pieces and puts the results together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["UNITS", "PieceStatistics", "bin_values", "measure_values", "weigh_values"]

UNITS = (2.0**-600, 1.0, 2.0**600)
"""The units that sums are kept in: squares of extreme float64 would leave the range in unit 1."""

_SMALL, _PLAIN, _BIG = range(3)
_SMALL_LIMIT, _BIG_LIMIT = 2.0**-480, 2.0**480


class PieceStatistics(NamedTuple):
    """Statistics of one piece of an array; the order is that of the kernel's `measure`.

    Attributes:
        nans: how many elements are NaN.
        positive_infinities: how many are +inf.
        negative_infinities: how many are -inf.
        zeros: how many are zero, of either sign.
        finite_max: the largest finite element, None without any; an int for integers.
        finite_min: the smallest finite element likewise.
        sums: sums of finite elements in each of UNITS. The sum of all is
            `sum(part * unit for part, unit in zip(sums, UNITS))`.
        squares: sums of the squares of finite elements, in the squares of UNITS.
    """

    nans: int
    positive_infinities: int
    negative_infinities: int
    zeros: int
    finite_max: float | None
    finite_min: float | None
    sums: tuple[float, float, float]
    squares: tuple[float, float, float]


def measure_values(values: npt.NDArray[Any]) -> PieceStatistics:
    """Return the statistics of an array of bools, integers or floats of numpy's own.

    >>> measure_values(np.array([3.0, -4.0, np.inf])).squares
    (0.0, 25.0, 0.0)
    """
    if values.dtype.kind == "b":
        # A bool may hold any byte; all but 0 are true.
        values = (values.view(np.uint8) != 0).view(np.uint8)
    if values.dtype.kind in "iu":
        return _measure_finite(values)
    finite = np.isfinite(values)
    if finite.all():
        return _measure_finite(values)
    return _measure_finite(values[finite])._replace(
        nans=int(np.count_nonzero(np.isnan(values))),
        positive_infinities=int(np.count_nonzero(np.isposinf(values))),
        negative_infinities=int(np.count_nonzero(np.isneginf(values))),
    )


def weigh_values(
    values: npt.NDArray[np.floating[Any]], counts: npt.NDArray[np.int64]
) -> PieceStatistics:
    """Return the statistics of an array that holds each of `values` as often as `counts` says.

    Args:
        values: different float16 or float32, so few and so moderate that unit 1 holds the sums.
        counts: one for each value.

    >>> weigh_values(np.array([0.5, np.nan], np.float32), np.array([4, 1])).sums
    (0.0, 2.0, 0.0)
    """
    present = counts > 0
    values, counts = _as_float64(values[present]), counts[present]
    each = measure_values(values)
    finite = np.isfinite(values)
    kept, weights = values[finite], counts[finite]
    return each._replace(
        nans=int(counts[np.isnan(values)].sum()),
        positive_infinities=int(counts[np.isposinf(values)].sum()),
        negative_infinities=int(counts[np.isneginf(values)].sum()),
        zeros=int(counts[values == 0].sum()),
        sums=(0.0, math.fsum(kept * weights), 0.0),
        squares=(0.0, math.fsum(kept * kept * weights), 0.0),
    )


def bin_values(
    values: npt.NDArray[Any], low: float, high: float, bins: int
) -> npt.NDArray[np.int64]:
    """Return how many values fall into each of `bins` equally wide bins from `low` to `high`.

    The last bin holds `high`, too. With `low == high` the first bin holds all that equals them.

    >>> bin_values(np.array([0, 1, 2, 3, 9, np.nan]), 0, 3, 3).tolist()
    [1, 1, 2]
    """
    if values.dtype.kind == "b":
        values = values.view(np.uint8) != 0
    wide = _as_float64(values)
    wide = wide[(wide >= low) & (wide <= high)]
    # Keep the arithmetic equal to bin_block in _kernel.c, so that both agree at every edge.
    unit = 0.5 if math.isinf(high - low) else 1.0
    width = high * unit - low * unit
    places = (wide * unit - low * unit) / (width if width > 0 else 1.0) * bins
    numbers = np.minimum(places, bins - 1).astype(np.int64)
    return np.bincount(numbers, minlength=bins).astype(np.int64, copy=False)


def _measure_finite(values: npt.NDArray[Any]) -> PieceStatistics:
    if not values.size:
        return PieceStatistics(0, 0, 0, 0, None, None, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    as_python = int if values.dtype.kind in "iu" else float
    largest, smallest = as_python(values.max()), as_python(values.min())
    peak = max(abs(largest), abs(smallest))
    unit = _BIG if peak > _BIG_LIMIT else _SMALL if 0 < peak < _SMALL_LIMIT else _PLAIN
    wide = _as_float64(values)
    if unit != _PLAIN:
        wide /= UNITS[unit]
    sums, squares = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    sums[unit] = float(wide.sum())
    # What is lost here to underflow is far below the rounding of the largest square.
    with np.errstate(under="ignore"):
        squares[unit] = float(np.square(wide).sum())
    zeros = values.size - int(np.count_nonzero(values))
    # Adding 0 turns -0.0, which some orders of reading would give, into 0.0.
    return PieceStatistics(
        0, 0, 0, zeros, largest + 0, smallest + 0, _triple(sums), _triple(squares)
    )


def _as_float64(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return a copy in float64, silent about signalling NaN, which are data here."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def _triple(parts: list[float]) -> tuple[float, float, float]:
    return parts[0], parts[1], parts[2]
