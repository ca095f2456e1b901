"""How much larger what goes into a result is than the result itself: the price of cancellation.

For a product of matrices that is sqrt(n) * |a| * |b| over the largest result, with root mean
squares for |a| and |b|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.operations.facts import (
    ADDING,
    AVERAGING,
    EXPONENTIALS,
    MATRIX,
    NORMS,
    PRODUCTS,
    SCALING,
)
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import Distance, is_float, largest_element

__all__ = ["count_terms", "find_gain", "root_mean_square", "top_of"]


def count_terms(
    operation: str, output: Distance, given: Sequence[Distance], saved: Sequence[Distance]
) -> float:
    """Return how many terms one element of a result sums, from the sizes of what goes in."""
    count = max(1, math.prod(output.candidate.shape))
    sizes = sorted((math.prod(d.candidate.shape) for d in (*given, *saved)), reverse=True)
    if not sizes:
        return 1.0
    reduced = sizes[0] / count
    if operation in MATRIX and len(sizes) > 1:
        return max(1.0, reduced, math.sqrt(sizes[0] * sizes[1] / count))
    longest = max((max(d.candidate.shape, default=1) for d in (*given, *saved)), default=1)
    return max(1.0, reduced, float(longest))


def find_gain(
    operation: str,
    output: Distance,
    given: Sequence[Distance],
    saved: Sequence[Distance],
    terms: float,
) -> float:
    """Return how much larger what goes into a result is than the result itself, at least 1."""
    size = largest_element(output.reference)
    floats = [d for d in given if is_float(d.reference)]
    if not size or not floats:
        return 1.0
    if operation in MATRIX:
        return max(1.0, _product_size(output, floats, saved, terms) / size)
    if _only_scales(operation, output, floats, saved):
        return 1.0
    sizes = sorted((largest_element(d.reference) for d in floats), reverse=True)
    summed = sizes[0]
    if operation in NORMS and not saved:
        # What is taken off is in the result no more, what is left is divided by its spread.
        spread = _deviation(floats[0])
        summed *= max([1.0, *sizes[1:]]) / spread if spread else 1.0
    elif operation in EXPONENTIALS and not saved:
        # A change of an exponent is a relative change of the result; what is masked has none.
        summed = size * max(1.0, top_of(floats[0]))
    elif operation in PRODUCTS:
        summed *= max([*sizes[1:], *(largest_element(d.reference) for d in saved)], default=1.0)
    elif saved:
        summed *= _saved_size(operation, saved)
    # A gradient that is summed over what was broadcast.
    count = max(1, math.prod(output.candidate.shape))
    most = max((math.prod(d.candidate.shape) for d in given), default=1)
    if most > count:
        summed *= math.sqrt(most / count)
    return max(1.0, summed / size)


def _saved_size(operation: str, saved: Sequence[Distance]) -> float:
    """Return the size of what a gradient is multiplied with.

    A sum hands gradients on as they are, and the gradient of a power is told by the result: what a
    mask has pushed far below is in neither.
    """
    if operation in ADDING:
        return 1.0
    is_told = operation in EXPONENTIALS
    counting = [d for d in saved if not is_told or d.place.startswith("output")]
    return max([1.0, *(largest_element(d.reference) for d in counting if is_float(d.reference))])


def _only_scales(
    operation: str, output: Distance, floats: Sequence[Distance], saved: Sequence[Distance]
) -> bool:
    """Whether a result is its one input times a number, spread over more elements or not.

    Its size then tells the number, and nothing has cancelled.
    """
    if operation in SCALING:
        tensors = [d for d in saved or floats if is_float(d.reference)]
        return sum(d.place.startswith("input") for d in tensors) == 1
    if operation in AVERAGING and saved:
        return math.prod(output.candidate.shape) >= math.prod(floats[0].candidate.shape)
    return False


def _product_size(
    output: Distance, floats: Sequence[Distance], saved: Sequence[Distance], terms: float
) -> float:
    """Return the size of what an element of a matrix product sums, cancellation left out."""
    factors = [root_mean_square(d) for d in floats]
    if saved:
        # A gradient is a product of what arrived with the argument that it is not the gradient of.
        count = math.prod(output.candidate.shape)
        others = [d for d in saved if is_float(d.reference) and d.place.startswith("input")]
        partners = [d for d in others if math.prod(d.candidate.shape) != count] or others
        partner = max((root_mean_square(d) for d in partners), default=1.0)
        # That of a bias is the sum of what arrived.
        factors = [*factors[:1], partner if len(output.candidate.shape) > 1 else max(1.0, partner)]
    product = math.prod(sorted(factors, reverse=True)[:2])
    return tolerances.TAILS * math.sqrt(terms) * product


def top_of(distance: Distance) -> float:
    """Return the size of a tensor's maximum: the exponents that a sum of powers is made of."""
    maximum = distance.reference.max
    top = largest_element(distance.reference) if maximum is None else abs(float(maximum))
    return top if math.isfinite(top) else 1.0


def _deviation(distance: Distance) -> float:
    """Return the standard deviation of a tensor's elements, 0 if its statistics do not tell."""
    value = distance.reference
    if value.norm is None or value.mean is None:
        return 0.0
    square = root_mean_square(distance) ** 2 - float(value.mean) ** 2
    return math.sqrt(square) if math.isfinite(square) and square > 0 else 0.0


def root_mean_square(distance: Distance) -> float:
    """Return the usual size of a tensor's elements."""
    value = distance.reference
    norm = 0.0 if value.norm is None else float(value.norm)
    count = max(1, math.prod(value.shape))
    return norm / math.sqrt(count) if math.isfinite(norm) else largest_element(value)
