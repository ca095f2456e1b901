"""Judge a call that cannot be replayed: do its inputs explain how far its results are apart?

The distance that rounding and the inputs' own distance excuse, relative to the result's size:

    allowed = slack * (roundings * gain + inherited * gain)

`gain` is how much larger what goes into the sums is than what comes out of them, the price of
cancellation: for a product of matrices sqrt(n) * |a| * |b| over the largest result, with root mean
squares for |a| and |b|. Of a tensor that differs only statistics may be known, which show less than
its elements do; so what is inherited is at least the distance that tensors before it have in this
run, and a copy of a part of it may show what the whole hid.

Means and norms average over the elements: rounding, which has no common direction, leaves on them
only 1 / sqrt(elements) of what it leaves on the largest element, and where a kernel rounds what a
whole row shares, 1 / sqrt(rows). So they are held against that much less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import (
    CallAgreement,
    Distance,
    is_float,
    is_nonfinite,
    largest_element,
)
from tensorprobe.blame.gain import count_terms, find_gain, root_mean_square, top_of
from tensorprobe.blame.order import CallPair
from tensorprobe.dtypes import DTYPES, roundoff_of, significant_bits
from tensorprobe.operations.facts import (
    EXACT,
    EXPONENTIALS,
    GATES,
    MANY_STEPS,
    MATRIX,
    PLACES_ALONE,
    PRODUCTS,
    RANDOM,
    ROUNDED_ONCE,
    WITH_PLACES,
)
from tensorprobe.operations.spelling import is_compound, operation_of

__all__ = ["Background", "Unexplained", "count_rows", "explain_call", "resolutions", "underflow"]

# What is allowed is an estimate from a few numbers for each tensor: statistics of noise alone stay
# below 2 of it. A module is many steps, each of which may be eight times off the other way.
_SLACK = 5.0
_MODULE_SLACK = 40.0
# Sums over many elements keep close to what is expected of them.
_AVERAGE_SLACK = 2.0
# Of inputs that are so far apart there is nothing that a result has to be.
_UNLIKE = 0.2
_TIMES_NOISE = 10.0
# Beyond so many times the usual noise an input's statistics tell of elements that are others.
_TURNED = 64.0
# Beyond so many terms (the root of it) kernels sum in parts.
_LONGEST_SUM = 64
# A factor is told by that many times what it may be off, from so many elements of so few bits.
_FACTOR = 4.0
_FEW_BITS = 11
_MANY = 32


@dataclass(frozen=True, slots=True)
class Background:
    """How far results of a run usually are apart.

    Attributes:
        value: their distance.
        average: that of their means and norms.
        single: that of their means and norms, times the root of their elements: what one element
            would show if all went their own way.
    """

    value: float = 0.0
    average: float = 0.0
    single: float = 0.0

    def or_more(self, other: Background) -> Background:
        """Return the larger of two, number by number."""
        return Background(
            max(self.value, other.value),
            max(self.average, other.average),
            max(self.single, other.single),
        )

    def of_average(self, count: int) -> float:
        """Return what is usual for the mean or norm of so many elements."""
        return max(self.average, self.single / math.sqrt(max(1, count)))


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A result that is further off than its call's inputs and rounding explain.

    Attributes:
        output: the result.
        allowed: the distance that would be explained.
        inherited: the largest distance of an input.
        times: how many times the distance is above what is allowed.
    """

    output: Distance
    allowed: float
    inherited: float
    times: float


def explain_call(
    pair: CallPair,
    agreement: CallAgreement,
    forward: CallAgreement | None,
    background: Background,
    work: float,
    hidden: float = 0.0,
) -> Unexplained | None:
    """Return the result that the inputs of a call do not explain, or None.

    Args:
        pair: the call.
        agreement: the distances of its own tensors.
        forward: of a backward call: those of its forward call, whose inputs it uses too.
        background: the distances that results before it usually have.
        work: the roundoff that matrix products of this run work in, 0 for their own.
        hidden: the roundoff of what its inputs were before, which their statistics do not show.
    """
    operation = operation_of(pair.name)
    given = list(agreement.inputs)
    saved = list(forward.inputs) + list(forward.outputs) if forward is not None else []
    found: Unexplained | None = None
    for output in agreement.outputs:
        result = _explain(pair, operation, output, given, saved, background, work, hidden)
        if result is not None and (found is None or result.times > found.times):
            found = result
    return found


def _explain(
    pair: CallPair,
    operation: str,
    output: Distance,
    given: Sequence[Distance],
    saved: Sequence[Distance],
    background: Background,
    work: float,
    hidden: float,
) -> Unexplained | None:
    if pair.phase == "forward" and _is_other_copy(operation, output, given):
        return Unexplained(output, 0.0, 0.0, math.inf)
    if output.value == 0:
        return None
    values = [_passed_on(operation, d) for d in given] + [d.value for d in saved]
    inherited = max((value for value in values if not math.isnan(value)), default=0.0)
    unknown = any(math.isnan(d.value) for d in (*given, *saved))
    is_module = is_compound(pair.name)
    if output.basis == "shape":
        # Autograd nodes of other kernels have results of other shapes. A forward call with equal
        # inputs has one shape only; with inputs that differ it may choose other elements.
        if pair.phase == "backward" or inherited or unknown or operation in RANDOM:
            return None
        return Unexplained(output, 0.0, 0.0, math.inf)
    if math.isnan(output.value):
        # Checksums alone: that equal inputs give another result is all that can be seen.
        if unknown or inherited:
            return None
        return Unexplained(output, 0.0, 0.0, math.inf)
    if unknown:
        return None
    if not is_float(output.candidate) or (operation in EXACT and pair.phase == "forward"):
        # Equal statistics do not prove that every element is equal, and numbers that are not
        # rounded may come from comparing some that are.
        is_sure = output.basis != "statistics" or (
            not is_float(output.candidate)
            and (background.value == 0 or not any(is_float(d.candidate) for d in given))
        )
        if inherited == 0 and operation not in RANDOM and is_sure:
            return Unexplained(output, 0.0, 0.0, math.inf)
        if not is_float(output.candidate):
            return None
    if math.isinf(output.value):
        is_excused = inherited >= 1 or _is_small(output, given, max(inherited, hidden))
        return None if is_excused else Unexplained(output, 1.0, inherited, math.inf)
    if inherited > _UNLIKE:
        return None
    own = max(2.0 ** -_fewest_bits(output, given, saved), *map(underflow, (output, *given)))
    accumulate = min(own, roundoff_of("torch.float32"))
    terms = count_terms(operation, output, given, saved)
    gain = find_gain(operation, output, given, saved, terms)
    roundings = (2 + math.sqrt(terms)) * accumulate * gain
    if operation in ROUNDED_ONCE or operation in EXACT:
        roundings += 2 * own
    else:
        roundings += 2 * own * gain
    if operation in MATRIX or is_module:
        roundings += work * gain
    if operation in EXACT and pair.phase == "forward":
        roundings = own if output.basis == "statistics" else 0.0
    # A way back that starts from equal inputs, after a way up without a difference, takes the same
    # kernels: what is off there is not the noise of many steps.
    is_first = pair.phase == "backward" and not (inherited or background.value or hidden)
    slack = _MODULE_SLACK if is_module and not is_first else _SLACK
    if operation in MANY_STEPS and pair.phase == "backward" and not is_module:
        slack *= 2
    # In a run of fewer bits every tensor has lost some, whatever its statistics show.
    carried = max(inherited, background.value, work)
    if output.basis == "statistics":
        carried = max(carried, hidden)
        if pair.phase == "backward" and inherited > _TURNED * max(background.value, own, work):
            # Not noise: a share of the elements has turned over, which moves the whole by its root.
            carried = max(carried, math.sqrt(inherited))
    allowed = slack * (roundings + gain * carried)
    if output.basis == "statistics":
        allowed += _summing_error(output)
    if allowed > 1 and pair.phase == "backward":
        allowed *= _TIMES_NOISE  # What cancels to nothing but noise may have any size.
    if output.value > allowed:
        times = output.value / allowed if allowed else math.inf
        return Unexplained(output, allowed, inherited, times)
    if is_module or not output.averages or work:
        return None
    passed = max((max(d.averages, default=d.value) for d in (*given, *saved)), default=0.0)
    found = _explain_averages(
        operation,
        pair.phase,
        output,
        slack,
        roundings,
        gain,
        max(inherited, hidden),
        passed,
        background,
    )
    return found or _explain_factor(output, inherited, passed)


def _passed_on(operation: str, distance: Distance) -> float:
    """Return how far an input is off, relative to what of it counts.

    Of exponents that is the largest: what a mask has pushed far below has no part in the result,
    and would hide every difference behind its size.
    """
    size = largest_element(distance.reference)
    if operation not in EXPONENTIALS or not size or not math.isfinite(distance.value):
        return distance.value
    return distance.value * max(1.0, size / max(1.0, top_of(distance)))


def _is_other_copy(operation: str, output: Distance, given: Sequence[Distance]) -> bool:
    """Whether checksums show that an exact operation makes something else of equal inputs."""
    mine, other = output.candidate, output.reference
    if operation not in EXACT or operation in RANDOM or output.basis != "statistics":
        return False
    if mine.checksum is None or other.checksum is None or mine.dtype != other.dtype:
        return False
    if not given or any(d.basis != "checksum" or d.value != 0 for d in given):
        return False
    if operation in WITH_PLACES | PLACES_ALONE and not is_float(mine):
        return False  # Among equal values any place is right.
    if mine.checksum == other.checksum:
        return False
    # Where elements are compared with zero, either sign of it is right; statistics do not show it.
    is_clipped = operation in GATES and any(
        math.prod(d.candidate.shape) == math.prod(mine.shape) for d in given
    )
    return output.value != 0 or not is_clipped


def _explain_factor(output: Distance, inherited: float, passed: float) -> Unexplained | None:
    """Judge a factor that largest, smallest and norm have in common: noise moves each its own way.

    Of few bits alone: noise of float32 may be one of a scalar by which all is multiplied.
    """
    mine, other = output.candidate, output.reference
    bits = significant_bits(mine.dtype)
    pairs = ((mine.max, other.max), (mine.min, other.min), (mine.norm, other.norm))
    if bits > _FEW_BITS or math.prod(mine.shape) < _MANY or not all(b for _, b in pairs):
        return None
    factors = [float(a or 0.0) / float(b or 1.0) - 1 for a, b in pairs]
    if not all(map(math.isfinite, factors)):
        return None
    unit = 2.0 ** (1 - bits)
    common = min(map(abs, factors))
    limit = _FACTOR * (unit + max(inherited, passed))
    if common <= limit or max(factors) - min(factors) > unit + common / 4:
        return None
    return Unexplained(output, limit, inherited, common / limit)


def _is_small(output: Distance, given: Sequence[Distance], inherited: float) -> bool:
    """Whether a result that should be all zeros is no larger than the noise of the inputs.

    The gradient of what cancels out is nothing but noise.
    """
    if is_nonfinite(output.candidate) or largest_element(output.reference):
        return False
    size = max((largest_element(d.candidate) for d in given if is_float(d.candidate)), default=0.0)
    return largest_element(output.candidate) <= _SLACK * inherited * size


def _explain_averages(
    operation: str,
    phase: str,
    output: Distance,
    slack: float,
    roundings: float,
    gain: float,
    inherited: float,
    passed: float,
    background: Background,
) -> Unexplained | None:
    """Judge how far mean and norm are apart: noise leaves less on them than on single elements."""
    count, rows = max(1, math.prod(output.candidate.shape)), _count_shared(operation, output)
    is_alone = operation in ROUNDED_ONCE and phase == "forward"
    independent = math.sqrt(count if is_alone else rows)
    # The norm over the largest element: the root of how many elements make up the norm.
    size, norm = largest_element(output.reference), float(output.reference.norm or 0.0)
    carrying = min(max(1.0, norm / size), math.sqrt(count)) if size else 1.0
    shares = (carrying / math.sqrt(count) / independent, 1 / min(carrying, independent))
    # What all elements have in common goes through a product as it is; cancellation raises only
    # what goes its own way.
    is_linear = phase == "backward" or operation in PRODUCTS
    common = passed if is_linear else gain * passed
    carried = max(common, gain * max(inherited / math.sqrt(rows), background.of_average(count)))
    worst = allowed = 0.0
    for value, share, resolution in zip(output.averages, shares, resolutions(output), strict=True):
        limit = _AVERAGE_SLACK * roundings * share + slack * carried + resolution
        if value / limit > worst:
            worst, allowed = value / limit, limit
    return Unexplained(output, allowed, inherited, worst) if worst > 1 else None


def _count_shared(operation: str, output: Distance) -> int:
    """Return how many parts a result has that may each share a rounding: rows, or channels."""
    shape = output.candidate.shape
    return max(1, shape[1]) if operation == "batch_norm" and len(shape) > 1 else count_rows(output)


def count_rows(distance: Distance) -> int:
    """Return how many rows a tensor has: what shares no rounding."""
    shape = distance.candidate.shape
    return max(1, math.prod(shape) // shape[-1]) if shape and shape[-1] else 1


def resolutions(output: Distance) -> tuple[float, float]:
    """Return how finely mean and norm were recorded, relative as their distances are.

    Some tools round the statistics of a tensor to its own type.
    """
    unit = roundoff_of(output.candidate.dtype)
    size = largest_element(output.reference)
    means, norms = (
        [float(v) for v in (getattr(output.candidate, key), getattr(output.reference, key)) if v]
        for key in ("mean", "norm")
    )
    mean = max((abs(item) for item in means), default=0.0)
    fine = 2.0**-22
    of_mean = 2 * unit if all(_fits(item, unit) for item in means) else fine
    of_norm = 2 * unit if all(_fits(item, unit) for item in norms) else fine
    of_norm += fine + _summing_error(output)
    return (of_mean * mean / size if size else 0.0) + fine, of_norm


def _summing_error(distance: Distance) -> float:
    """Return how far off a recorded norm is: tools sum it in float32."""
    terms = math.sqrt(math.prod(distance.candidate.shape))
    return min(terms, _LONGEST_SUM) * 2.0**-25


def _fits(number: float, unit: float) -> bool:
    """Whether a number is one of a type with this unit roundoff."""
    fraction, _ = math.frexp(number)
    return (fraction / unit).is_integer()


def _fewest_bits(output: Distance, given: Sequence[Distance], saved: Sequence[Distance]) -> int:
    """Return the significant bits that a result may have been rounded to on its way.

    Under autocast a result of float32 may be one of 16 bits that was cast.
    """
    dtypes = [output.candidate.dtype, output.reference.dtype]
    for distance in (*given, *saved):
        if is_float(distance.candidate):
            dtypes += [distance.candidate.dtype, distance.reference.dtype]
    return min(map(significant_bits, dtypes))


def underflow(distance: Distance) -> float:
    """Return the roundoff of numbers too small to be normal ones, relative to their usual size.

    Gradients of float16 often are, without a scale.
    """
    if "torch.float16" not in (distance.candidate.dtype, distance.reference.dtype):
        return 0.0
    size = root_mean_square(distance)
    return min(1.0, DTYPES["torch.float16"].smallest / 2 / size) if size else 0.0
