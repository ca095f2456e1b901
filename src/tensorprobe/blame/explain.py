"""Judge a call that cannot be replayed: do its inputs explain how far its results are apart?

The distance that rounding and the inputs' own distance excuse, relative to the result's size:

    allowed = slack * (roundings * gain + inherited * gain)

`gain` is how much larger what goes into the sums is than what comes out of them, the price of
cancellation: for a product of matrices sqrt(n) * |a| * |b| / |result| in largest elements. Of a
tensor that differs only statistics may be known, which show less than its elements do; so what is
inherited is at least the distance that tensors before it usually have in this run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import CallAgreement, Distance, is_float, largest_element
from tensorprobe.blame.operations import EXACT, MATRIX, RANDOM, ROUNDED_ONCE, operation_of
from tensorprobe.blame.order import CallPair

__all__ = ["Unexplained", "explain_call", "significant_bits"]

# Rounding errors of a few independent steps; a module is many.
_SLACK = 8.0
_MODULE_SLACK = 64.0
_BITS = {"torch.float64": 53, "torch.float32": 24, "torch.float16": 11, "torch.bfloat16": 8}
_PRODUCTS = MATRIX | {"mul", "__mul__", "__rmul__", "__imul__", "mul_", "outer", "multiply"}


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


def significant_bits(dtype: str) -> int:
    """Return the significant bits of a float type by its name; 53 for types without rounding."""
    if dtype.startswith("torch.float8"):
        return 3
    return _BITS.get(dtype, 53)


def explain_call(
    pair: CallPair,
    agreement: CallAgreement,
    forward: CallAgreement | None,
    background: float,
    work: float,
) -> Unexplained | None:
    """Return the result that the inputs of a call do not explain, or None.

    Args:
        pair: the call.
        agreement: the distances of its own tensors.
        forward: of a backward call: those of its forward call, whose inputs it uses too.
        background: the distance that results before it usually have.
        work: the roundoff that matrix products of this run work in, 0 for their own.
    """
    operation = operation_of(pair.name)
    given = list(agreement.inputs)
    saved = list(forward.inputs) + list(forward.outputs) if forward is not None else []
    found: Unexplained | None = None
    for output in agreement.outputs:
        result = _explain(pair, operation, output, given, saved, background, work)
        if result is not None and (found is None or result.times > found.times):
            found = result
    return found


def _explain(
    pair: CallPair,
    operation: str,
    output: Distance,
    given: Sequence[Distance],
    saved: Sequence[Distance],
    background: float,
    work: float,
) -> Unexplained | None:
    if output.value == 0:
        return None
    inherited = max((d.value for d in (*given, *saved) if not math.isnan(d.value)), default=0.0)
    unknown = any(math.isnan(d.value) for d in (*given, *saved))
    is_module = pair.name.startswith("Module.")
    if output.basis == "shape":
        # Autograd nodes of other kernels have results of other shapes. A forward call with equal
        # inputs has one shape only; with inputs that differ it may choose other elements.
        if pair.phase == "backward" or inherited or unknown or operation in RANDOM:
            return None
        return Unexplained(output, 0.0, 0.0, math.inf)
    if math.isnan(output.value):
        # Checksums alone: only an exact operation, or one with equal inputs, can be judged.
        if unknown or inherited or not (operation in EXACT and pair.phase == "forward"):
            return None
        return Unexplained(output, 0.0, 0.0, math.inf)
    if unknown:
        return None
    if not is_float(output.candidate) or (operation in EXACT and pair.phase == "forward"):
        if inherited == 0 and operation not in RANDOM:
            return Unexplained(output, 0.0, 0.0, math.inf)
        if not is_float(output.candidate):
            return None
    if math.isinf(output.value):
        return Unexplained(output, 1.0, inherited, math.inf) if inherited < 1 else None
    if math.isinf(inherited):
        return None
    bits = min(significant_bits(output.candidate.dtype), significant_bits(output.reference.dtype))
    own = 2.0**-bits
    accumulate = min(own, 2.0**-24)
    terms = _count_terms(operation, output, given, saved)
    gain = _gain(operation, output, given, saved, terms)
    roundings = (2 + math.sqrt(terms)) * accumulate * gain
    if operation in ROUNDED_ONCE or operation in EXACT:
        roundings += 2 * own
    else:
        roundings += 2 * own * gain
    if operation in MATRIX or is_module:
        roundings += work * gain
    if operation in EXACT and pair.phase == "forward":
        roundings = 0.0
    slack = _MODULE_SLACK if is_module else _SLACK
    allowed = slack * (roundings + gain * max(inherited, background))
    if output.value <= allowed:
        return None
    return Unexplained(output, allowed, inherited, output.value / allowed if allowed else math.inf)


def _count_terms(
    operation: str, output: Distance, given: Sequence[Distance], saved: Sequence[Distance]
) -> float:
    count = max(1, math.prod(output.candidate.shape))
    sizes = sorted((math.prod(d.candidate.shape) for d in (*given, *saved)), reverse=True)
    if not sizes:
        return 1.0
    reduced = sizes[0] / count
    if operation in MATRIX and len(sizes) > 1:
        return max(1.0, reduced, math.sqrt(sizes[0] * sizes[1] / count))
    longest = max((max(d.candidate.shape, default=1) for d in (*given, *saved)), default=1)
    return max(1.0, reduced, float(longest))


def _gain(
    operation: str,
    output: Distance,
    given: Sequence[Distance],
    saved: Sequence[Distance],
    terms: float,
) -> float:
    """Return how much larger what goes into a result is than the result itself, at least 1."""
    size = largest_element(output.reference)
    if not size:
        return 1.0
    sizes = sorted(
        (largest_element(d.reference) for d in given if is_float(d.reference)), reverse=True
    )
    others = [largest_element(d.reference) for d in saved if is_float(d.reference)]
    if not sizes:
        return 1.0
    summed = sizes[0]
    if operation in _PRODUCTS:
        partner = max([*sizes[1:], *others], default=1.0)
        summed *= partner * (math.sqrt(terms) if operation in MATRIX else 1.0)
    elif others:
        summed *= max(1.0, *others)
    # A gradient that is summed over what was broadcast.
    count = max(1, math.prod(output.candidate.shape))
    most = max((math.prod(d.candidate.shape) for d in given), default=1)
    if most > count and operation not in MATRIX:
        summed *= math.sqrt(most / count)
    return max(1.0, summed / size)
