"""Say of one output whether it is right: pass, warning, error or SKIP, and why.

    equal ─► pass
    within the tolerance of its dtype and reduction length ─► pass
    else: no element further off than the next number of its dtype, towards it ─► warning
    else: as sums that are kept in a half would be, and other errors for other inputs ─► warning
    else: as far off as rounding noise moves the precise result ─► warning, else error

What the rule of the older tools says (`older_rule`) stands beside the verdict, and the message
names the limits of it that are missed. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from tensorprobe.dtypes import roundoff_of
from tensorprobe.metrics.pair import PairNumbers, Unavailable, relative_distance
from tensorprobe.precheck.measure import OutputNumbers, measure_first, measure_output
from tensorprobe.precheck.older_rule import OlderVerdict, hold_against_older_rule
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.noisy_runs import NoiseLimits, lies_within_noise
from tensorprobe.rounding.tensor_limit import (
    is_half,
    limit_of_drift,
    limit_of_noise,
    limit_of_own_sum,
    limit_of_result,
)
from tensorprobe.summary.host import have_equal_bits

__all__ = [
    "Judgement",
    "Resemblance",
    "Runs",
    "Verdict",
    "judge_at_once",
    "judge_output",
    "skipped",
    "typical_size",
    "worst_verdict",
]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of the reference that rounding moved.

    Attributes:
        make: returns the output of each; asked only when needed, for one after the other.
        may_drift: whether a result may be larger or smaller as a whole if these are.
    """

    make: Callable[[], Iterable[torch.Tensor | None]]
    may_drift: bool = True


class Resemblance(NamedTuple):
    """How the errors for several inputs resemble each other.

    Attributes:
        is_alike: whether they do; also where no other inputs can be tried.
        shared_by: how many elements have a share in the errors; fewer if few of them have most.
    """

    is_alike: bool
    shared_by: float


Verdict = Literal["pass", "warning", "error", "SKIP"]
_ORDER: tuple[Verdict, ...] = ("SKIP", "pass", "warning", "error")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one output.

    Attributes:
        verdict: pass, warning, error or SKIP.
        message: which number missed which limit, or why it was skipped.
        numbers: what was measured, of floating-point outputs.
        limit: what the distance may be; None where no tolerance applies.
        unequal: share of elements that differ as values.
        excess: how many times the tolerance was exceeded, to sort by; 0 when it was not.
        pair: the numbers of one pass, where no more was measured.
        older: what the rule of the older tools says; None where it says nothing, as of integers.
    """

    verdict: Verdict
    message: str = ""
    numbers: OutputNumbers | None = None
    limit: float | None = None
    unequal: float | None = None
    excess: float = 0.0
    pair: PairNumbers | None = None
    older: OlderVerdict | None = None


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of some verdicts; SKIP only where there is nothing else.

    >>> worst_verdict(["pass", "SKIP", "warning"])
    'warning'
    """
    return max(verdicts, key=_ORDER.index, default="SKIP")


def judge_at_once(
    candidate: torch.Tensor, reference: torch.Tensor, *, length: int
) -> Judgement | None:
    """Pass an output of which one pass tells that it is within its tolerance; None of any other.

    Args:
        candidate: the device's result, on the CPU.
        reference: the reference's result, in its own higher precision.
        length: how many numbers were added up for one element.
    """
    if have_equal_bits(candidate, reference):
        return Judgement("pass", unequal=0.0)
    dtype = candidate.dtype
    is_float = dtype.is_floating_point or dtype.is_complex
    is_alike = is_float and dtype.is_complex is reference.dtype.is_complex
    if candidate.shape != reference.shape or not is_alike:
        return None
    pair = measure_first(candidate, reference).pair
    distance = relative_distance(pair)
    if not pair.unequal:
        return Judgement("pass", unequal=0.0, pair=pair)
    typical = typical_size(pair)
    limit = limit_of_result(dtype, length, typical).total
    if isinstance(distance, Unavailable) or distance > limit:
        return None
    # No element is further off than the largest error is from the typical magnitude.
    if pair.max_abs_error > tolerances.ONE_ELEMENT * limit * typical:
        return None
    return Judgement("pass", limit=limit, unequal=pair.unequal / pair.count, pair=pair)


def judge_output(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    *,
    length: int,
    noise: Sequence[Runs] = (),
    computed_in: torch.dtype | None = None,
    is_gradient: bool = False,
    slack: float = 1.0,
    resemblance: Callable[[], Resemblance] | None = None,
) -> Judgement:
    """Judge one output against the precise one.

    Args:
        candidate: the device's result, on the CPU.
        reference: the reference's result, in its own higher precision.
        length: how many numbers were added up for one element.
        noise: kinds of runs with rounding noise; each is asked for when the others explain nothing.
        computed_in: the dtype whose tolerance applies, if it is not the candidate's own: under
            autocast a float32 gradient comes out of a half.
        is_gradient: whether it came from the backward.
        slack: how many times the tolerance applies.
        resemblance: says whether the device errs alike for other inputs, which rounding does not;
            asked only when needed. Without it no sum in a half explains anything.
    """
    dtype = candidate.dtype
    is_exact = not (dtype.is_floating_point or dtype.is_complex)
    other = reference.is_floating_point() or reference.is_complex()
    if candidate.shape != reference.shape:
        return Judgement(
            "error",
            f"the device gave the shape {list(candidate.shape)}, the reference "
            f"{list(reference.shape)}",
            excess=math.inf,
            older="fail" if other else None,
        )
    if is_exact is other and candidate.numel():
        return Judgement(
            "error",
            f"the device gave {dtype}, the reference {reference.dtype}",
            excess=math.inf,
            older="fail",
        )
    if is_exact:
        return _judge_exactly(candidate, reference, noise)
    dtype = dtype if computed_in is None else computed_in
    numbers = measure_output(candidate, reference)
    limit = slack * limit_of_result(dtype, length, typical_size(numbers.pair)).total
    unequal = numbers.pair.unequal / max(numbers.pair.count, 1)
    excess = _excess(numbers, limit)
    # The older tools go by what they see: the dtype of the result.
    older = hold_against_older_rule(candidate.dtype, numbers)
    missed = older.missed

    def judgement(verdict: Verdict, *reasons: str) -> Judgement:
        message = "; ".join(reason for reason in reasons if reason)
        worst = 0.0 if verdict == "pass" else excess
        return Judgement(verdict, message, numbers, limit, unequal, worst, older=older.verdict)

    if excess <= 1.0:
        within = f"{missed}, which rounding in {dtype} explains" if missed else ""
        return judgement("pass", within)
    why = _describe_excess(dtype, numbers, limit, length)
    is_next = numbers.ulp_max is not None and numbers.ulp_max <= 1 and numbers.distance is not None
    if is_next and _is_rounded_twice(candidate, reference):
        # Of few elements all may lie so; of many the errors even out below the tolerance.
        return judgement("warning", why, missed, "every element is right or a neighbour of it")
    is_own_sum = _is_own_sum(dtype, numbers, length, limit, is_gradient=is_gradient)
    if is_own_sum and resemblance is not None and not resemblance().is_alike:
        return judgement("warning", why, missed, f"a sum that is kept in {dtype} explains it")
    is_noise = _is_noise(candidate, reference, dtype, noise)
    if is_noise and is_half(dtype) and resemblance is not None:
        # Few elements may err alike because a step jumps or swallows another; then by much.
        found = resemblance()
        is_small = numbers.distance is not None and numbers.distance <= tolerances.SMALL_FAULT
        needed = tolerances.FEWEST_ALIKE if is_small else tolerances.ENOUGH_TO_CANCEL
        is_noise = not (found.is_alike and found.shared_by >= needed)
    if is_noise:
        return judgement("warning", why, missed, "rounding noise moves the precise result as far")
    return judgement("error", why, missed)


def _judge_exactly(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    noise: Sequence[Runs],
) -> Judgement:
    if candidate.dtype != reference.dtype:
        kinds = f"the device gave {candidate.dtype}, the reference {reference.dtype}"
        return Judgement("error", kinds, excess=math.inf)
    if torch.equal(candidate, reference):
        return Judgement("pass", unequal=0.0)
    differs = candidate != reference
    wrong = int(differs.sum())
    share = wrong / max(candidate.numel(), 1)
    message = (
        f"{wrong} of {candidate.numel()} elements differ, {candidate.dtype} must be equal; "
        f"first at {_place_of(differs)}"
    )
    if any(
        wrong <= 4 * max(int((run != reference).sum()) for run in runs)
        for runs, _ in _growing(noise, reference)
    ):
        return Judgement(
            "warning", f"{message}; rounding noise flips as many", unequal=share, excess=1.0
        )
    return Judgement("error", message, unequal=share, excess=math.inf)


def skipped(reason: str) -> Judgement:
    """Return the judgement of a result that cannot be judged."""
    return Judgement("SKIP", reason)


def typical_size(pair: PairNumbers) -> float:
    """Return the root mean square of the reference's elements."""
    count = max(pair.count - max(pair.candidate_nonfinite, pair.reference_nonfinite), 1)
    return math.sqrt(pair.reference_squares / count) * pair.scales.reference


def _excess(numbers: OutputNumbers, limit: float) -> float:
    if numbers.distance is None:
        return math.inf
    return max(numbers.distance / limit, numbers.worst / (tolerances.ONE_ELEMENT * limit))


def _is_rounded_twice(candidate: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether each element is as near to the precise one as two roundings leave it.

    That is the next number of its dtype where the precise one lies towards it. Where it lies on the
    other side, the next number is off by more: in bfloat16 by one per cent.
    """
    limits = torch.finfo(candidate.dtype)
    wide = torch.complex128 if reference.is_complex() else torch.float64
    truth, ours = reference.to(wide), candidate.to(wide)
    if truth.is_complex():
        truth, ours = torch.view_as_real(truth), torch.view_as_real(ours)
    step = torch.exp2(torch.frexp(truth).exponent.double() - 1).mul_(limits.eps)
    step.clamp_(min=limits.smallest_normal * limits.eps)
    is_off = (ours - truth).abs() > tolerances.NEIGHBOUR_STEPS * step
    return not bool((is_off & torch.isfinite(truth) & torch.isfinite(ours)).any())


def _is_own_sum(
    dtype: torch.dtype, numbers: OutputNumbers, length: int, limit: float, *, is_gradient: bool
) -> bool:
    """Whether errors may be those of sums that were rounded to a half after each addition.

    Some kernels keep them so, as those of embeddings' and norms' gradients do on the CPU. Of few
    elements only gradients that are long sums may be some.
    """
    if length <= 1 or not is_half(dtype) or numbers.distance is None:
        return False
    if numbers.pair.count < tolerances.ENOUGH_TO_CANCEL and not (
        is_gradient and length >= tolerances.ENOUGH_TO_CANCEL
    ):
        return False
    allowed = limit_of_own_sum(dtype, length, limit).total
    # Not all elements are sums of as many numbers.
    return numbers.distance <= allowed and numbers.worst <= tolerances.ONE_ELEMENT * allowed


def _describe_excess(dtype: torch.dtype, numbers: OutputNumbers, limit: float, length: int) -> str:
    pair = numbers.pair
    wrong = pair.nan_mismatch + pair.inf_mismatch
    if wrong:
        return (
            f"{wrong} of {pair.count} elements are NaN or infinite on one side only "
            f"(device {pair.candidate_nonfinite}, reference {pair.reference_nonfinite})"
        )
    reasons = []
    if numbers.distance is not None and numbers.distance > limit:
        reasons.append(f"the relative distance {numbers.distance:.3g} is over {limit:.3g}")
    if numbers.worst > tolerances.ONE_ELEMENT * limit:
        reasons.append(
            f"an element is off by {numbers.worst:.3g} times its own and the typical magnitude "
            f"together, over {tolerances.ONE_ELEMENT * limit:.3g} (the largest error, of element "
            f"{pair.max_abs_index}, is {pair.max_abs_error:.3g})"
        )
    after = f" after sums of {length}" if length > 1 else ""
    return f"{' and '.join(reasons)}, the tolerance of {dtype}{after}"


def _is_noise(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    dtype: torch.dtype,
    noise: Sequence[Runs],
) -> bool:
    """Whether the candidate lies about as far from the precise result as noisy runs do."""
    return any(
        lies_within_noise(
            candidate,
            reference,
            runs,
            NoiseLimits(
                roundoff_of(dtype),
                limit_of_noise(dtype),
                limit_of_drift(dtype),
                may_drift=may_drift,
            ),
        )
        for runs, may_drift in _growing(noise, reference)
    )


def _growing(
    noise: Sequence[Runs], reference: torch.Tensor
) -> Iterator[tuple[list[torch.Tensor], bool]]:
    """Yield the first noisy run, and again together with each further one."""
    same: list[torch.Tensor] = []
    for runs in noise:
        for run in runs.make():
            if run is not None and run.shape == reference.shape:
                same.append(run)
                yield same, runs.may_drift


def _place_of(differs: torch.Tensor) -> list[int]:
    first = differs.nonzero()[0]
    return [int(index) for index in first]
