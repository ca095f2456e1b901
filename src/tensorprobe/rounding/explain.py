"""Judge a call that cannot be replayed: do its inputs explain how far its results are apart?

The distance that rounding and the inputs' own distance excuse, relative to the result's size:

    limit = slack * (sums * gain + roundings * gain + operands * gain + carried * gain) + norms

`gain` is how much larger what goes into the sums is than what comes out of them, the price of
cancellation: for a product of matrices sqrt(n) * |a| * |b| over the largest result, with root mean
squares for |a| and |b|. Of a tensor that differs only statistics may be known, which show less than
its elements do; so what is inherited is at least the distance that tensors before it have in this
run, and a copy of a part of it may show what the whole hid.

Means and norms average over the elements: rounding, which has no common direction, leaves on them
only 1 / sqrt(elements) of what it leaves on the largest element, and where a kernel rounds what a
whole row shares, 1 / sqrt(rows). So they are held against that much less.

    Result ─► _PLAIN: does anything but rounding decide? ─► _limit_of_rounding ─► averages, factor
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

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
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import (
    CallAgreement,
    Distance,
    is_float,
    is_nonfinite,
    largest_element,
)
from tensorprobe.rounding.gain import count_terms, find_gain, top_of
from tensorprobe.rounding.limit import Limit, Term
from tensorprobe.rounding.recorded import (
    count_rows,
    fewest_bits,
    resolutions,
    summing_error,
    underflow,
)

__all__ = [
    "Background",
    "Call",
    "Unexplained",
    "explain_call",
]


class Call(Protocol):
    """What has to be known of a call beside its distances."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def phase(self) -> Literal["forward", "backward"]:
        """Whether it belongs to the way up or to the way back."""

    @property
    def is_exact(self) -> bool:
        """Whether it only moves, picks or compares numbers."""


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
        limit: the distance that would be explained, and by what.
        inherited: the largest distance of an input.
        times: how many times the distance is above the limit.
    """

    output: Distance
    limit: Limit
    inherited: float
    times: float

    @property
    def allowed(self) -> float:
        """The distance that would be explained."""
        return self.limit.total


def explain_call(
    call: Call,
    agreement: CallAgreement,
    forward: CallAgreement | None,
    background: Background,
    work: float,
    hidden: float = 0.0,
) -> Unexplained | None:
    """Return the result that the inputs of a call do not explain, or None.

    Args:
        call: the call.
        agreement: the distances of its own tensors.
        forward: of a backward call: those of its forward call, whose inputs it uses too.
        background: the distances that results before it usually have.
        work: the roundoff that matrix products of this run work in, 0 for their own.
        hidden: the roundoff of what its inputs were before, which their statistics do not show.
    """
    saved = () if forward is None else (*forward.inputs, *forward.outputs)
    operation, is_module = operation_of(call.name), is_compound(call.name)
    found: Unexplained | None = None
    for output in agreement.outputs:
        result = _Result(
            operation=operation,
            is_backward=call.phase == "backward",
            is_module=is_module,
            is_exact=call.is_exact,
            output=output,
            given=agreement.inputs,
            saved=saved,
            background=background,
            work=work,
            hidden=hidden,
        ).judge()
        if result is not None and (found is None or result.times > found.times):
            found = result
    return found


@dataclass(frozen=True, kw_only=True)
class _Result:
    """One result of a call, and everything that may explain its distance."""

    operation: str
    is_backward: bool
    is_module: bool
    is_exact: bool
    output: Distance
    given: Sequence[Distance]
    saved: Sequence[Distance]
    background: Background
    work: float
    hidden: float

    def judge(self) -> Unexplained | None:
        """Hold the result against what is excused, from the plainest reason to the finest."""
        output = self.output
        if not self.is_backward and _is_other_copy(self):
            limit = Limit.nothing("the same copied is the same, and the checksums differ")
            return Unexplained(output, limit, 0.0, math.inf)
        if output.value == 0:
            return None
        for find_limit in _PLAIN:
            limit_of_it = find_limit(self)
            if limit_of_it is not None:
                return self._beyond(limit_of_it)
        if not is_float(output.candidate):
            return None
        if math.isinf(output.value):
            return self._beyond(_limit_of_nonfinite(self))
        if self.inherited > tolerances.UNLIKE_INPUTS:
            return None
        found = self._beyond(_limit_of_rounding(self))
        if found is not None or self.is_module or not output.averages or self.work:
            return found
        return _explain_averages(self) or _explain_factor(self)

    def _beyond(self, limit: Limit) -> Unexplained | None:
        total, value = limit.total, self.output.value
        # Where checksums alone are known the distance is not a number.
        if not math.isfinite(total) or value <= total:
            return None
        times = value / total if total else math.inf
        return Unexplained(self.output, limit, self.inherited, times)

    @cached_property
    def inherited(self) -> float:
        """The largest distance of what went in, as far as it is known."""
        values = [_passed_on(self.operation, d) for d in self.given]
        values += [d.value for d in self.saved]
        return max((value for value in values if not math.isnan(value)), default=0.0)

    @cached_property
    def has_unknown(self) -> bool:
        """Whether of something that went in nobody knows how far it is apart."""
        return any(math.isnan(d.value) for d in (*self.given, *self.saved))

    @property
    def is_told_by_statistics(self) -> bool:
        """Whether nothing but statistics is known of the distance."""
        return self.output.basis == "statistics"

    @cached_property
    def own(self) -> float:
        """The roundoff of the fewest bits that the result may have had on its way."""
        rounded = 2.0 ** -fewest_bits(self.output, self.given, self.saved)
        return max(rounded, *map(underflow, (self.output, *self.given)))

    @cached_property
    def terms(self) -> float:
        """How many terms an element sums."""
        return count_terms(self.operation, self.output, self.given, self.saved)

    @cached_property
    def gain(self) -> float:
        """How much larger what is summed is than the result."""
        return find_gain(self.operation, self.output, self.given, self.saved, self.terms)

    @cached_property
    def slack(self) -> float:
        """How many times an estimate is allowed.

        A way back that starts from equal inputs, after a way up without a difference, takes the
        same kernels: what is off there is not the noise of many steps.
        """
        is_first = self.is_backward and not (self.inherited or self.background.value or self.hidden)
        if self.is_module and not is_first:
            return tolerances.MODULE_SLACK
        if self.operation in MANY_STEPS and self.is_backward and not self.is_module:
            return tolerances.DISTANCE_SLACK * tolerances.MANY_STEPS_SLACK
        return tolerances.DISTANCE_SLACK

    @cached_property
    def roundings(self) -> Limit:
        """What the call itself may make of equal inputs, without slack."""
        if self.is_exact:
            own = self.own if self.is_told_by_statistics else 0.0
            return Limit((Term(own, "statistics are rounded as the elements are"),))
        accumulate = min(self.own, roundoff_of("torch.float32"))
        sums = (2 + math.sqrt(self.terms)) * accumulate * self.gain
        is_once = self.operation in ROUNDED_ONCE or self.operation in EXACT
        steps = 2 * self.own * (1.0 if is_once else self.gain)
        limit = Limit(
            (
                Term(sums, "sums are rounded as they grow"),
                Term(steps, "results are rounded, of several steps each"),
            )
        )
        if self.operation in MATRIX or self.is_module:
            limit = limit.plus(Term(self.work * self.gain, "this run rounds operands of products"))
        return limit


# --- what decides without rounding: from nothing at all to anything ------------------------------


def _limit_of_shapes(result: _Result) -> Limit | None:
    """Judge another shape.

    Autograd nodes of other kernels have results of other shapes. A forward call with equal inputs
    has one shape only; with inputs that differ it may choose other elements.
    """
    if result.output.basis != "shape":
        return None
    if result.is_backward or result.inherited or result.has_unknown or result.operation in RANDOM:
        return Limit.anything("other values may give another shape")
    return Limit.nothing("equal inputs give one shape only")


def _limit_of_checksums(result: _Result) -> Limit | None:
    """Judge checksums alone: that equal inputs give another result is all that can be seen."""
    if result.has_unknown or (math.isnan(result.output.value) and result.inherited):
        return Limit.anything("what went in differs, nobody knows by how much")
    if math.isnan(result.output.value):
        return Limit.nothing("equal inputs give equal checksums")
    return None


def _limit_of_exact(result: _Result) -> Limit | None:
    """Judge what is not rounded.

    Equal statistics do not prove that every element is equal, and numbers that are not rounded may
    come from comparing some that are.
    """
    is_rounded = is_float(result.output.candidate)
    if (is_rounded and not result.is_exact) or result.inherited or result.operation in RANDOM:
        return None
    compares_noise = result.background.value and any(is_float(d.candidate) for d in result.given)
    if result.is_told_by_statistics and (is_rounded or compares_noise):
        return None
    return Limit.nothing("equal inputs give equal results: nothing is rounded here")


_PLAIN: tuple[Callable[[_Result], Limit | None], ...] = (
    _limit_of_shapes,
    _limit_of_checksums,
    _limit_of_exact,
)


def _limit_of_nonfinite(result: _Result) -> Limit:
    """Judge what is not finite on one side, or not zero where it should be."""
    hidden = max(result.inherited, result.hidden)
    if result.inherited >= 1 or _is_small(result.output, result.given, hidden):
        return Limit.anything("what went in differs as much")
    return Limit((Term(1.0, "a result may be off by its own size"),))


# --- what rounding and the inputs explain --------------------------------------------------------


def _limit_of_rounding(result: _Result) -> Limit:
    carried = Term(result.gain * _carried(result), "what went in differs, or the run before it")
    limit = result.roundings.plus(carried).times(result.slack)
    if result.is_told_by_statistics:
        limit = limit.plus(Term(summing_error(result.output), "norms are summed in float32"))
    if limit.total > 1 and result.is_backward:
        # What cancels to nothing but noise may have any size.
        limit = limit.times(tolerances.CANCELLED_SLACK)
    return limit


def _carried(result: _Result) -> float:
    """Return how far apart what went in may be, whatever is seen of it.

    In a run of fewer bits every tensor has lost some, whatever its statistics show.
    """
    inherited, usual = result.inherited, max(result.background.value, result.work)
    carried = max(inherited, usual)
    if not result.is_told_by_statistics:
        return carried
    carried = max(carried, result.hidden)
    if result.is_backward and inherited > tolerances.TURNED * max(usual, result.own):
        # Not noise: a share of the elements has turned over, which moves the whole by its root.
        carried = max(carried, math.sqrt(inherited))
    return carried


def _explain_averages(result: _Result) -> Unexplained | None:
    """Judge how far mean and norm are apart: noise leaves less on them than on single elements."""
    output = result.output
    count, rows = max(1, math.prod(output.candidate.shape)), _count_shared(result)
    is_alone = result.operation in ROUNDED_ONCE and not result.is_backward
    independent = math.sqrt(count if is_alone else rows)
    # The norm over the largest element: the root of how many elements make up the norm.
    size, norm = largest_element(output.reference), float(output.reference.norm or 0.0)
    carrying = min(max(1.0, norm / size), math.sqrt(count)) if size else 1.0
    shares = (carrying / math.sqrt(count) / independent, 1 / min(carrying, independent))
    # What all elements have in common goes through a product as it is; cancellation raises only
    # what goes its own way.
    is_linear = result.is_backward or result.operation in PRODUCTS
    passed = _passed_averages(result)
    common = passed if is_linear else result.gain * passed
    inherited = max(result.inherited, result.hidden)
    carried = max(
        common,
        result.gain * max(inherited / math.sqrt(rows), result.background.of_average(count)),
    )
    found: Unexplained | None = None
    for value, share, resolution in zip(output.averages, shares, resolutions(output), strict=True):
        rounded = result.roundings.total * share
        limit = Limit(
            (
                Term(rounded, "rounding, averaged over the elements", tolerances.AVERAGE_SLACK),
                Term(carried, "what means and norms of the inputs differ by", result.slack),
                Term(resolution, "how finely the average was recorded"),
            )
        )
        times = value / limit.total
        if times > (1.0 if found is None else found.times):
            found = Unexplained(output, limit, inherited, times)
    return found


def _explain_factor(result: _Result) -> Unexplained | None:
    """Judge a factor that largest, smallest and norm have in common: noise moves each its own way.

    Of few bits alone: noise of float32 may be one of a scalar by which all is multiplied.
    """
    mine, other = result.output.candidate, result.output.reference
    bits = significant_bits(mine.dtype)
    pairs = ((mine.max, other.max), (mine.min, other.min), (mine.norm, other.norm))
    is_short = bits <= significant_bits("torch.float16")
    is_known = is_short and math.prod(mine.shape) >= tolerances.MANY_ELEMENTS
    if not is_known or not all(wanted for _, wanted in pairs):
        return None
    factors = [float(got or 0.0) / float(wanted or 1.0) - 1 for got, wanted in pairs]
    if not all(map(math.isfinite, factors)):
        return None
    unit = 2.0 ** (1 - bits)
    common = min(map(abs, factors))
    passed = max(result.inherited, _passed_averages(result))
    limit = Limit(
        (
            Term(unit, "one rounding of the extremes", tolerances.COMMON_FACTOR),
            Term(passed, "what went in differs by", tolerances.COMMON_FACTOR),
        )
    )
    if common <= limit.total or max(factors) - min(factors) > unit + common / 4:
        return None
    return Unexplained(result.output, limit, result.inherited, common / limit.total)


# --- what is known of a tensor -------------------------------------------------------------------


def _passed_on(operation: str, distance: Distance) -> float:
    """Return how far an input is off, relative to what of it counts.

    Of exponents that is the largest: what a mask has pushed far below has no part in the result,
    and would hide every difference behind its size.
    """
    size = largest_element(distance.reference)
    if operation not in EXPONENTIALS or not size or not math.isfinite(distance.value):
        return distance.value
    return distance.value * max(1.0, size / max(1.0, top_of(distance)))


def _passed_averages(result: _Result) -> float:
    """Return how far means and norms of what went in are apart."""
    given = (*result.given, *result.saved)
    return max((max(d.averages, default=d.value) for d in given), default=0.0)


def _is_complex(distance: Distance) -> bool:
    dtype = DTYPES.get(distance.candidate.dtype)
    return dtype is not None and dtype.kind == "complex"


def _is_other_copy(result: _Result) -> bool:
    """Whether checksums show that an exact operation makes something else of equal inputs."""
    mine, other, given = result.output.candidate, result.output.reference, result.given
    if not result.is_exact or result.operation in RANDOM or not result.is_told_by_statistics:
        return False
    if mine.checksum is None or other.checksum is None or mine.dtype != other.dtype:
        return False
    if not given or any(d.basis != "checksum" or d.value != 0 for d in given):
        return False
    if (result.operation in WITH_PLACES or result.operation in PLACES_ALONE) and not is_float(mine):
        return False  # Among equal values any place is right.
    if mine.checksum == other.checksum:
        return False
    # Where elements are compared with zero, either sign of it is right; statistics do not show it.
    is_clipped = result.operation in GATES and any(
        math.prod(d.candidate.shape) == math.prod(mine.shape) for d in given
    )
    return result.output.value != 0 or not is_clipped


def _is_small(output: Distance, given: Sequence[Distance], inherited: float) -> bool:
    """Whether a result that should be all zeros is no larger than the noise of the inputs.

    The gradient of what cancels out is nothing but noise.
    """
    if is_nonfinite(output.candidate) or largest_element(output.reference):
        return False
    size = max((largest_element(d.candidate) for d in given if is_float(d.candidate)), default=0.0)
    return largest_element(output.candidate) <= tolerances.DISTANCE_SLACK * inherited * size


def _count_shared(result: _Result) -> int:
    """Return how many parts a result has that may each share a rounding: rows, or channels."""
    shape = result.output.candidate.shape
    if result.operation == "batch_norm" and len(shape) > 1:
        return max(1, shape[1])
    return count_rows(result.output)
