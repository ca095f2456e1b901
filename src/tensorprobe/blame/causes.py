"""Say what kind of fault a suspect looks like, and show what that is read from.

The kinds are readings of the error's shape, not proofs: a multiple of the result is a wrong
constant, a few elements are corruption, an error of the size of another type's rounding is a matter
of precision. What does not look like any of them is a different computation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.blame.agreement import is_nonfinite
from tensorprobe.blame.analyse import RankAnalysis, Suspect
from tensorprobe.blame.argument_names import name_argument
from tensorprobe.blame.evidence import MadeHere, OutputSplit, flat_tensors, results_of
from tensorprobe.blame.operations import EXACT, MOVING, NORMS, RANDOM, operation_of
from tensorprobe.blame.order import stretch_around
from tensorprobe.blame.own_backward import OwnBackward
from tensorprobe.blame.passed_on import is_handed_on
from tensorprobe.blame.unreplayed import measure_unreplayed
from tensorprobe.records import TensorValue

__all__ = ["PROOF_ADVICE", "Cause", "is_between_modules", "is_flipped_exponent", "name_cause"]

# An error is one thing alone when that explains all but a tenth of its square.
_MOSTLY = 0.95
_FEW = 1e-3
# An error of so many times what is to be expected is rounding and nothing else.
_ROUNDING = 3.0
# Below this an error is smaller than what other algorithms for the same function differ by.
_APPROXIMATION = 0.02


@dataclass(frozen=True, slots=True)
class Cause:
    """What a fault looks like.

    Attributes:
        kind: one word for machines: argument, state, missing call, extra call, communication,
            non-finite, randomness, indices, values, corruption, scale, precision, approximation
            or computation.
        text: a sentence for people, with the evidence.
        advice: what to do next.
    """

    kind: str
    text: str
    advice: str


def name_cause(suspect: Suspect, analysis: RankAnalysis) -> Cause:
    """Return what kind of fault a suspect looks like."""
    operation = operation_of(suspect.call)
    if suspect.basis == "arguments":
        changes = "; ".join(
            f"{name_argument(suspect.call, change.place)} is {change.candidate}, in the reference "
            f"{change.reference}"
            for change in suspect.changes
        )
        return Cause(
            "argument",
            f"it is called with other arguments: {changes}",
            "compare the configuration and the code around this call",
        )
    if suspect.basis == "state" and is_between_modules(suspect):
        return Cause(
            "state",
            f"{suspect.place} differs, and no recorded module made it: it comes from outside or "
            "from code between modules",
            "capture at level mix, which records what runs between modules",
        )
    if suspect.basis == "state":
        return Cause(
            "state",
            f"{name_argument(suspect.call, suspect.place)} comes from outside and differs; the "
            "operation itself computes what its inputs give",
            "compare where this parameter or buffer is loaded, initialised or updated",
        )
    if suspect.own is not None:
        return _read_own_backward(suspect.own)
    if suspect.basis == "sequence":
        # The other run may have a call of that name elsewhere: call numbers are shifted.
        is_extra = analysis.pairs[suspect.position].candidate is not None
        where = "candidate" if is_extra else "reference"
        return Cause(
            "extra call" if is_extra else "missing call",
            f"only the {where} makes {_name_stretch(suspect, analysis)}"
            f"{_describe_alone(suspect, analysis)}; {_describe_follower(suspect)}",
            "compare the code of both runs at this place",
        )
    if suspect.seen_at:
        return Cause(
            "indices",
            f"its values stand in other places: their statistics agree, and so does the mean of "
            f"{suspect.seen_at}, to which they are added, but not its largest or its norm",
            "capture this call with task tensor on both sides: a replay can prove it",
        )
    if suspect.call.startswith("Distributed."):
        return Cause(
            "communication",
            "what this rank sent agrees, what it received does not, and no rank sent a bad value",
            "check the group, the order of the collectives and the network",
        )
    if operation in RANDOM and suspect.basis != "replay":
        return Cause(
            "randomness",
            "it draws random numbers, and the runs drew others",
            "seed both runs alike (tensorprobe.seed_all) or turn dropout off, then capture again",
        )
    if suspect.basis == "gap" and math.isinf(suspect.times):
        return Cause(
            "non-finite",
            f"a gradient arrives at {suspect.place} with NaN or infinities, and no recorded result "
            "before it has any",
            "capture this call's gradients with tensorprobe, or at level mix",
        )
    if suspect.basis == "gap" and suspect.place.startswith(f"{suspect.call}."):
        return Cause(
            "computation",
            "the gradient that arrives here is not the one that was sent: what changes it between "
            "two recorded calls was not recorded",
            "look for a hook or a function of its own on this call's result",
        )
    if suspect.basis == "gap":
        return Cause(
            "computation",
            f"one of its backward nodes was not recorded; its gradient arrives wrong at "
            f"{suspect.place}",
            "capture this call's gradients with tensorprobe, or at level mix",
        )
    replayed = analysis.splits.get(suspect.call)
    if suspect.split is not None and replayed is not None and replayed.settings is not None:
        ours, theirs = replayed.settings
        return Cause(
            "argument",
            f"its result is what {ours} gives, the reference's what {theirs} gives; how modules "
            "are set was not recorded",
            "compare how this module is made in both runs",
        )
    if suspect.split is not None:
        return _read_error(operation, suspect, suspect.split)
    return _read_distances(suspect, analysis)


def _read_own_backward(own: OwnBackward) -> Cause:
    where = "candidate" if own.is_candidate else "reference"
    calls = own.helpers[0] if len(own.helpers) == 1 else f"{own.helpers[0]} to {own.helpers[-1]}"
    what = "the gradient that arrives here" if own.is_received else "this gradient"
    text = f"only the {where} computes {what} with a backward of its own ({calls})"
    advice = "check that backward against torch.autograd.gradcheck"
    if own.result is None:
        return Cause("computation", text, advice)
    factor = _common_factor(own.result.candidate, own.result.reference)
    if factor is not None:
        return Cause("scale", f"{text}; it is {factor:.6g} times the reference's", advice)
    return Cause("computation", f"{text}; it is off by {own.result.value:.1e} of its size", advice)


def _name_stretch(suspect: Suspect, analysis: RankAnalysis) -> str:
    """Name a call that only one run makes, with those that it stands together with."""
    is_extra = analysis.pairs[suspect.position].candidate is not None
    is_module = suspect.call.startswith("Module.")
    stretch = [
        pair
        for pair in stretch_around(suspect.position, analysis.pairs)
        # The modules around calls are no calls more.
        if pair.name.startswith("Module.") == is_module and pair.phase == suspect.phase
    ]
    more = [
        pair.name
        for pair in stretch
        if (pair.candidate is not None) == is_extra and pair.position > suspect.position
    ]
    others = [pair.name for pair in stretch if (pair.candidate is not None) != is_extra]
    text = "this call"
    if more:
        text += " and the one behind it" if len(more) == 1 else f" and the {len(more)} behind it"
        text += f", {'up to ' if len(more) > 1 else ''}{more[-1]}"
    if others:
        other = "reference" if is_extra else "candidate"
        text += f" (in its place the {other} makes {others[0]}"
        text += f" and {len(others) - 1} more)" if len(others) > 1 else ")"
    return text


def _describe_alone(suspect: Suspect, analysis: RankAnalysis) -> str:
    """Say what a call that only one run makes does to what it is given, where that is plain."""
    pair = analysis.pairs[suspect.position]
    call = pair.candidate or pair.reference
    assert call is not None
    given = [value for value in flat_tensors(call.inputs) if value is not None]
    made = [value for value in results_of(call) if value is not None]
    if not given or not made:
        return ""
    if is_nonfinite(made[0]) and not any(is_nonfinite(value) for value in given):
        return ", which makes NaN or infinities"
    same_shape = made[0].shape == given[0].shape
    factor = _common_factor(made[0], given[0]) if same_shape else None
    return "" if factor is None else f", which multiplies what it is given by {factor:.6g}"


def _describe_follower(suspect: Suspect) -> str:
    """Say where a call that only one run makes shows, and whether the runs' ends show it."""
    lone = suspect.lone
    if lone is None:
        return "what follows starts from other values"
    text = f"what follows starts from other values, first {lone.follower}"
    if lone.consequences == "inside":
        text += "; the runs end in the same results all the same"
    return text


def is_between_modules(suspect: Suspect) -> bool:
    """Whether what differs is given to a module: code that runs around it may have made it."""
    return is_handed_on(suspect.call, suspect.place)


PROOF_ADVICE = "write the proof with --repro and give it to whoever maintains the kernel"
"""Of a fault that a replay shows."""


def _read_error(operation: str, suspect: Suspect, split: OutputSplit) -> Cause:
    made = split.candidate
    if made.nonfinite:
        return Cause(
            "non-finite",
            f"{made.nonfinite} of {split.count} elements are NaN or infinite and should be finite, "
            f"such as {made.wanted:.6g}",
            PROOF_ADVICE,
        )
    if split.exact:
        kind = "indices" if operation in MOVING else "values"
        what = "other elements than its indices say" if kind == "indices" else "other values"
        return Cause(
            kind,
            f"it copies {what}: {made.unequal} of {split.count} are wrong",
            PROOF_ADVICE,
        )
    if made.spikes and made.spikes <= max(3, _FEW * split.count) and made.spikes < split.count / 4:
        return Cause("corruption", _describe_spikes(split, made), PROOF_ADVICE)
    if made.relative and abs(made.scale) >= _MOSTLY * made.relative and split.count > 1:
        return _name_factor(operation, made, "little else is wrong")
    precision = _read_precision(split, made)
    if precision is not None:
        return Cause("precision", precision, "check the types the kernel accumulates and rounds in")
    if suspect.measure == "factor":
        return _name_factor(operation, made, _name_rest(made, suspect.working))
    if made.relative < _APPROXIMATION:
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
    )


def _name_factor(operation: str, made: MadeHere, rest: str) -> Cause:
    # What a norm divides by is the root of a variance and of eps, which every row has in common.
    eps = "; another eps has much the same effect" if operation in NORMS else ""
    return Cause(
        "scale",
        f"the result is {1 + made.scale:.8g} times what it should be, and {rest}{eps}",
        "look for a wrong constant, a factor used twice or left out, or an eps",
    )


def _name_rest(made: MadeHere, working: int) -> str:
    """Say what is left of an error besides its common factor: rounding, or more than that."""
    rest = math.sqrt(max(0.0, made.relative**2 - made.scale**2))
    level = made.levels[min(working, len(made.levels) - 1)]
    if level and rest <= _ROUNDING * made.relative / level:
        return "what else is wrong is rounding"
    return f"not all over alike: besides that, {rest:.1e} of its size is error"


def _describe_spikes(split: OutputSplit, made: MadeHere) -> str:
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


def _read_precision(split: OutputSplit, made: MadeHere) -> str | None:
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


def _read_distances(suspect: Suspect, analysis: RankAnalysis) -> Cause:
    """Read a cause from statistics or distances, where there was no replay."""
    found = suspect.unexplained
    assert found is not None
    seen = measure_unreplayed(
        suspect.call,
        suspect.phase,
        found.output,
        found.allowed,
        analysis.candidate,
        analysis.reference,
    )
    if seen is not None:
        return _read_error(operation_of(suspect.call), suspect, seen)
    mine, other = found.output.candidate, found.output.reference
    if mine.shape != other.shape:
        return Cause(
            "computation",
            f"its result has the shape {list(mine.shape)} instead of {list(other.shape)}",
            "capture with task tensor to see the values",
        )
    if is_nonfinite(mine) and not is_nonfinite(other):
        return Cause(
            "non-finite",
            "its result holds NaN or infinities, its inputs do not",
            "capture this call with task tensor to see which elements",
        )
    advice = "capture this call with task tensor on both sides: a replay can prove it"
    if operation_of(suspect.call) in EXACT and suspect.phase == "forward":
        return Cause("indices", "it only moves or picks values, yet they are others", advice)
    factor = _common_factor(mine, other)
    if factor is not None:
        return Cause("scale", f"all statistics are {factor:.6g} times the reference's", advice)
    if math.isnan(found.output.value):
        return Cause("computation", "its inputs have equal checksums, its result has not", advice)
    return Cause(
        "computation",
        f"its result is off by {found.output.value:.1e} of its size; its inputs and rounding "
        f"explain {found.allowed:.1e}",
        advice,
    )


def _common_factor(mine: TensorValue, other: TensorValue) -> float | None:
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
