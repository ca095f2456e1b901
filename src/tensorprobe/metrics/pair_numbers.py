"""What is known of two arrays after one pass over both, and the metrics that follow from it.

    PairNumbers ─► cosine, euclidean_distance, max_absolute_error, max_relative_error, error_ratio

A metric that cannot be computed is an `Unavailable`, which says why; nothing here is text.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from tensorprobe.metrics.pair_numpy import NO_SCALES, THRESHOLDS, Scales

__all__ = [
    "PairNumbers",
    "Unavailable",
    "cosine",
    "equal_pair",
    "error_ratio",
    "euclidean_distance",
    "max_absolute_error",
    "max_relative_error",
    "relative_distance",
    "scalar_errors",
]


class Unavailable(enum.Enum):
    """Why a metric has no number."""

    EMPTY = "there are no elements"
    NONFINITE_PLACES = "NaN or infinities stand in other places on the other side"
    ONE_ELEMENT = "one element has no direction"
    CANDIDATE_ZERO = "the candidate is all zero and the reference is not"
    REFERENCE_ZERO = "the reference is all zero and the candidate is not"


@dataclass(frozen=True, slots=True)
class PairNumbers:
    """Everything that one pass over two arrays of the same number of elements tells.

    All arithmetic is in float64. Where a side is NaN or infinite the pair counts as two zeros in
    the sums and errors: it agrees when both are NaN or the same infinity, else it is a mismatch,
    which is within no threshold and unequal. Of complex numbers errors and sizes are moduli, and
    `dot` is the real part of the inner product.

    Attributes:
        count: all elements.
        dot: sum of candidate * reference, in units of both sides' scales.
        candidate_squares: sum of candidate squared, in units of its scale squared.
        reference_squares: likewise of the reference.
        difference_squares: likewise of candidate - reference.
        max_abs_error: the largest abs(candidate - reference); infinite where float64 overflows.
        max_abs_index: the place of one such element in C order, -1 when it is 0.
        max_relative_error: the largest abs(candidate - reference) / abs(reference), where a
            reference of 0 counts as 2**-52.
        within: how many have a relative error below 1e-4, 1e-3, 5e-3 and 1e-2.
        unequal: how many differ as values; NaN equals NaN, -0.0 equals 0.0.
        nan_mismatch: how many are NaN on one side only.
        inf_mismatch: how many are infinite on one side and another number (not NaN) on the other.
        opposite_infinities: those of `inf_mismatch` that are infinite on both sides.
        candidate_nonfinite: how many are NaN or infinite in the candidate.
        reference_nonfinite: how many are NaN or infinite in the reference.
        scales: what the sums are measured in; 1.0 but for extreme float64.
        was_read: whether the elements were read. If not, both sides are known to be the same data
            by other means (see `equal_pair`), and sums and counts of what is not finite are
            unknown: NaN and -1.
    """

    count: int
    dot: float
    candidate_squares: float
    reference_squares: float
    difference_squares: float
    max_abs_error: float
    max_abs_index: int
    max_relative_error: float
    within: tuple[int, int, int, int]
    unequal: int
    nan_mismatch: int
    inf_mismatch: int
    opposite_infinities: int
    candidate_nonfinite: int
    reference_nonfinite: int
    scales: Scales = NO_SCALES
    was_read: bool = True

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same values."""
        return not self.unequal

    @property
    def nonfinite_places_match(self) -> bool:
        """Whether NaN stand where NaN stand, and infinities where the same infinities do."""
        return not self.nan_mismatch and not self.inf_mismatch


def equal_pair(count: int) -> PairNumbers:
    """Return the numbers of two sides that are known to be the same data, without reading them.

    The same file on both sides, or equal checksums, tell it. All metrics follow: NaN and infinities
    stand in the same places, and zeros point the way that zeros do. Only `scalar_errors` asks for
    the value.

    Args:
        count: the number of elements of either side.

    >>> numbers = equal_pair(12)
    >>> cosine(numbers), max_relative_error(numbers), error_ratio(numbers, 1e-3)
    (1.0, 0.0, 1.0)
    """
    return PairNumbers(
        count=count,
        dot=math.nan,
        candidate_squares=math.nan,
        reference_squares=math.nan,
        difference_squares=0.0,
        max_abs_error=0.0,
        max_abs_index=-1,
        max_relative_error=0.0,
        within=(count, count, count, count),
        unequal=0,
        nan_mismatch=0,
        inf_mismatch=0,
        opposite_infinities=0,
        candidate_nonfinite=-1,
        reference_nonfinite=-1,
        was_read=False,
    )


def cosine(numbers: PairNumbers) -> float | Unavailable:
    """Return the cosine of the angle between both sides; two zeros point the same way.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> cosine(measure_arrays(np.array([1.0, 0.0]), np.array([1.0, 1.0])))
    0.7071067811865475
    >>> cosine(measure_arrays(np.zeros(3), np.ones(3)))
    <Unavailable.CANDIDATE_ZERO: 'the candidate is all zero and the reference is not'>
    """
    problem = _explain_gap(numbers)
    if problem is not None:
        return problem
    if numbers.count == 1:
        return Unavailable.ONE_ELEMENT
    squares, reference_squares = numbers.candidate_squares, numbers.reference_squares
    if numbers.equal:
        return 1.0
    if not squares or not reference_squares:
        return Unavailable.REFERENCE_ZERO if squares else Unavailable.CANDIDATE_ZERO
    # Rounding may lead past 1 by a few units of the last place.
    angle = numbers.dot / (math.sqrt(squares) * math.sqrt(reference_squares))
    return max(-1.0, min(1.0, angle))


def euclidean_distance(numbers: PairNumbers) -> float | Unavailable:
    """Return the norm of candidate - reference.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> euclidean_distance(measure_arrays(np.array([1.0, 2.0]), np.array([4.0, 6.0])))
    5.0
    """
    problem = _explain_gap(numbers)
    if problem is not None:
        return problem
    return math.sqrt(numbers.difference_squares) * numbers.scales.difference


def relative_distance(numbers: PairNumbers) -> float | Unavailable:
    """Return the norm of candidate - reference over that of the reference.

    Two zeros are at distance 0; anything else is infinitely far from a reference of zeros.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> relative_distance(measure_arrays(np.array([3.0, 5.0]), np.array([3.0, 4.0])))
    0.2
    """
    distance = euclidean_distance(numbers)
    if isinstance(distance, Unavailable):
        return distance
    if numbers.equal:
        return 0.0
    size = math.sqrt(numbers.reference_squares) * numbers.scales.reference
    return distance / size if size else math.inf


def max_absolute_error(numbers: PairNumbers) -> float | Unavailable:
    """Return the largest abs(candidate - reference).

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> max_absolute_error(measure_arrays(np.array([1.0, np.inf]), np.array([1.5, 7.0])))
    <Unavailable.NONFINITE_PLACES: 'NaN or infinities stand in other places on the other side'>
    """
    problem = _explain_gap(numbers)
    return numbers.max_abs_error if problem is None else problem


def max_relative_error(numbers: PairNumbers) -> float | Unavailable:
    """Return the largest abs(candidate - reference) / abs(reference).

    A reference of 0 counts as 2**-52, so that an error there is very large and not infinite.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> max_relative_error(measure_arrays(np.array([1.0, 3.0]), np.array([1.0, 2.0])))
    0.5
    >>> max_relative_error(measure_arrays(np.array([0.0, 1.0]), np.array([0.0, 0.0])))
    4503599627370496.0
    """
    problem = _explain_gap(numbers)
    return numbers.max_relative_error if problem is None else problem


def error_ratio(numbers: PairNumbers, threshold: float) -> float | Unavailable:
    """Return the share of elements whose relative error is below a threshold.

    Args:
        numbers: what was measured.
        threshold: one of `THRESHOLDS`.

    Raises:
        ValueError: elements below this threshold were not counted.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> error_ratio(measure_arrays(np.array([1.0, 2.004]), np.array([1.0, 2.0])), 1e-3)
    0.5
    """
    if threshold not in THRESHOLDS:
        raise ValueError(f"got the threshold {threshold}, wanted one of {THRESHOLDS}")
    problem = _explain_gap(numbers)
    if problem is not None:
        return problem
    return numbers.within[THRESHOLDS.index(threshold)] / numbers.count


def scalar_errors(numbers: PairNumbers) -> tuple[float, float]:
    """Return the absolute and the relative error of one element, as plain arithmetic gives them.

    The errors of a tensor without dimensions are NaN where it is NaN or inf - inf, and infinite
    where one side is.

    Raises:
        ValueError: there is not exactly one element, or it was not read.

    >>> from tensorprobe.metrics.pair import measure_arrays
    >>> import numpy as np
    >>> scalar_errors(measure_arrays(np.array(3.0), np.array(2.0)))
    (1.0, 0.5)
    >>> scalar_errors(measure_arrays(np.array(np.inf), np.array(np.inf)))
    (nan, nan)
    """
    if numbers.count != 1 or not numbers.was_read:
        raise ValueError(f"got {numbers.count} elements, wanted one that was read")
    if not numbers.candidate_nonfinite and not numbers.reference_nonfinite:
        return numbers.max_abs_error, numbers.max_relative_error
    if not numbers.inf_mismatch:
        return math.nan, math.nan
    return math.inf, math.nan if numbers.reference_nonfinite else math.inf


def _explain_gap(numbers: PairNumbers) -> Unavailable | None:
    """Return why no metric can be given for these numbers, or None."""
    if not numbers.count:
        return Unavailable.EMPTY
    if not numbers.nonfinite_places_match:
        return Unavailable.NONFINITE_PLACES
    return None
