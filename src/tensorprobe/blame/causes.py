"""Say what kind of fault an error looks like, and show what that is read from.

The kinds are readings of the error's shape, not proofs: a multiple of the result is a wrong
constant, a few elements are corruption, an error of the size of another type's rounding is a matter
of precision. What does not look like any of them is a different computation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.call_split import OutputSplit, OwnError
from tensorprobe.operations.facts import MOVING, NORMS
from tensorprobe.operations.spelling import operation_of
from tensorprobe.records import TensorValue
from tensorprobe.rounding import tolerances

__all__ = ["PROOF_ADVICE", "Cause", "common_factor", "is_flipped_exponent", "read_error"]


@dataclass(frozen=True, slots=True)
class Cause:
    """What a fault looks like.

    Attributes:
        kind: one word for machines: argument, state, missing call, extra call, communication,
            non-finite, randomness, indices, values, corruption, scale, precision, approximation
            or computation.
        text: a sentence for people, with the evidence.
        advice: what to do next.
        is_for_a_proof: whether that is to show it to whoever maintains the kernel.
    """

    kind: str
    text: str
    advice: str
    is_for_a_proof: bool = False


PROOF_ADVICE = "write the proof with --repro and give it to whoever maintains the kernel"
"""Of a fault that a replay shows."""


def read_error(call: str, split: OutputSplit, measure: str = "", working: int = 0) -> Cause:
    """Return what kind of fault the error of a result looks like.

    Args:
        call: the call that made it.
        split: the error in numbers.
        measure: which yardstick of a replay tells, if one does.
        working: the index of the roundoff that the run works in.
    """
    operation, made = operation_of(call), split.candidate
    if made.nonfinite:
        return Cause(
            "non-finite",
            f"{made.nonfinite} of {split.count} elements are NaN or infinite and should be finite, "
            f"such as {made.wanted:.6g}",
            PROOF_ADVICE,
            is_for_a_proof=True,
        )
    if split.exact:
        kind = "indices" if operation in MOVING else "values"
        what = "other elements than its indices say" if kind == "indices" else "other values"
        return Cause(
            kind,
            f"it copies {what}: {made.unequal} of {split.count} are wrong",
            PROOF_ADVICE,
            is_for_a_proof=True,
        )
    if (
        made.spikes
        and made.spikes <= max(3, tolerances.FEW_WRONG * split.count)
        and made.spikes < split.count / 4
    ):
        return Cause("corruption", _describe_spikes(split, made), PROOF_ADVICE, is_for_a_proof=True)
    if (
        made.relative
        and abs(made.scale) >= tolerances.ONE_THING * made.relative
        and split.count > 1
    ):
        return _name_factor(operation, made, "little else is wrong")
    precision = _read_precision(split, made)
    if precision is not None:
        return Cause("precision", precision, "check the types the kernel accumulates and rounds in")
    if measure == "factor":
        return _name_factor(operation, made, _name_rest(made, working))
    if made.relative < tolerances.APPROXIMATION:
        return Cause(
            "approximation",
            f"all over the result errors of {made.relative:.1e} of its size: another algorithm or "
            "an approximation",
            "check which implementation and which flags (fast math, approximate=) the device uses",
        )
    return Cause(
        "computation",
        f"the result is another one altogether: {made.relative:.2g} of its size is error",
        PROOF_ADVICE,
        is_for_a_proof=True,
    )


def _name_factor(operation: str, made: OwnError, rest: str) -> Cause:
    # What a norm divides by is the root of a variance and of eps, which every row has in common.
    eps = "; another eps has much the same effect" if operation in NORMS else ""
    return Cause(
        "scale",
        f"the result is {1 + made.scale:.8g} times what it should be, and {rest}{eps}",
        "look for a wrong constant, a factor used twice or left out, or an eps",
    )


def _name_rest(made: OwnError, working: int) -> str:
    """Say what is left of an error besides its common factor: rounding, or more than that."""
    rest = math.sqrt(max(0.0, made.relative**2 - made.scale**2))
    level = made.levels[min(working, len(made.levels) - 1)]
    if level and rest <= tolerances.ONLY_ROUNDING * made.relative / level:
        return "what else is wrong is rounding"
    return f"not all over alike: besides that, {rest:.1e} of its size is error"


def _describe_spikes(split: OutputSplit, made: OwnError) -> str:
    text = (
        f"{made.spikes} of {split.count} elements {'is' if made.spikes == 1 else 'are'} wrong and "
        f"the others are not; element "
        f"{made.worst} is {made.got:.6g} and should be {made.wanted:.6g}"
    )
    # The bound of the worst element: what its error is over how many times it is beyond that.
    peak = made.peaks[0]
    bound = abs(made.got - made.wanted) / peak if peak and math.isfinite(peak) else 0.0
    if is_flipped_exponent(made.got, made.wanted, split.dtype, bound):
        return f"{text}: one bit of its exponent is flipped"
    if made.wanted and abs(made.got + made.wanted) <= bound:
        return f"{text}: its sign is flipped"
    return text


def is_flipped_exponent(got: float, wanted: float, dtype: str, bound: float) -> bool:
    """Whether one number is another with one bit of its exponent flipped, and nothing else.

    Args:
        got: what was recorded.
        wanted: what it should be.
        dtype: the type of both.
        bound: how far off rounding may leave it.

    >>> is_flipped_exponent(3.0, 1.5, "torch.float32", 0.0)
    False
    >>> is_flipped_exponent(6.0, 1.5, "torch.float32", 0.0)
    False
    >>> is_flipped_exponent(0.75, 1.5, "torch.float32", 0.0)
    True
    """
    if not got or not wanted or not (math.isfinite(got) and math.isfinite(wanted)):
        return False
    bias = {"torch.float64": 1023, "torch.float16": 15}.get(dtype, 127)
    shift = math.frexp(got)[1] - math.frexp(wanted)[1]
    # What rounding leaves may carry a number over a power of two.
    for power in (shift, shift - 1, shift + 1):
        if abs(got / 2.0**power - wanted) > bound:
            continue
        field = math.frexp(got)[1] - 1 + bias
        changed = field ^ (field - power)
        return power != 0 and min(field, field - power) > 0 and changed & (changed - 1) == 0
    return False


def _read_precision(split: OutputSplit, made: OwnError) -> str | None:
    if split.once and made.bias < -0.5 and made.levels[0] < 3:
        return (
            f"it cuts results off instead of rounding them: they are too small by "
            f"{-made.bias:.2f} of half a unit in the last place on average"
        )
    if made.bits and made.bits != split.reference.bits and made.relative < 2.0 ** (1 - made.bits):
        name = "bfloat16" if made.bits == 8 else "float16 or TF32"
        return (
            f"all its values have {made.bits} significant bits, as those of {name}, and its type "
            "has 24: it was rounded on the way"
        )
    for roundoff, level in zip(split.roundoffs[1:], made.levels[1:], strict=False):
        if level <= 2:
            bits = round(-math.log2(roundoff))
            return (
                f"its error is that of arithmetic with {bits} significant bits; "
                f"{split.dtype} sums are kept in more"
            )
    return None


def common_factor(mine: TensorValue, other: TensorValue) -> float | None:
    """Return the factor between two tensors' statistics if it is one for all of them."""
    factors = [
        float(a) / float(b)
        for a, b in ((mine.max, other.max), (mine.min, other.min), (mine.norm, other.norm))
        if a is not None and b is not None and float(b)
    ]
    if len(factors) < 2 or not all(math.isfinite(factor) for factor in factors):
        return None
    middle = sorted(factors)[len(factors) // 2]
    change = abs(middle - 1)
    if change == 0 or max(abs(factor - middle) for factor in factors) > 0.05 * change:
        return None
    return middle
