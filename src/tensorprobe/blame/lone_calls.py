"""Judge calls that only one of the runs makes: do they matter?

Two runs may take other ways to the same: one kernel for three calls, a view less. So what one run
alone calls is suspected only where that has consequences, at the runs' ends or on the way: a call
that uses the same parameters in both runs stands at the same place of the model, and what goes into
it must be the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprobe.blame.agreement import statistics_key
from tensorprobe.blame.links import Links, Use
from tensorprobe.blame.start import is_parameter
from tensorprobe.dtypes import roundoff_of
from tensorprobe.names import is_parameter_gradients
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float

__all__ = ["Consequences", "LoneCall", "find_consequences", "find_follower"]

_NEAR = 5

Consequences = Literal["none", "inside", "end"]


@dataclass(frozen=True, slots=True)
class LoneCall:
    """What a call that only one run makes leads to.

    Attributes:
        follower: the first value behind it that differs, with its call.
        consequences: where that matters: at the runs' ends, or only inside.
    """

    follower: str
    consequences: Consequences


def find_consequences(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    backgrounds: Mapping[int, float],
    work: float,
) -> Consequences:
    """Return where the runs differ by more than rounding: at their ends, or only on the way.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        links: where tensors of the trusted run come from.
        backgrounds: the distance that is usual before each place of the run.
        work: the roundoff that matrix products of this run work in, 0 for their own.
    """
    both = [pair for pair in pairs if pair.candidate is not None and pair.reference is not None]
    if len(both) == len(pairs):
        return "none"
    if _end_otherwise(both, agreements):
        return "end"
    # Behind the first call that one run alone makes, what is usual may be what that leads to.
    first = next(pair for pair in pairs if pair.candidate is None or pair.reference is None)
    noise = tolerances.BEYOND_NOISE * max(backgrounds[first.position], work)
    for pair in both:
        if pair.phase == "forward":
            inputs = agreements[pair.name].inputs
            learnt = {d.place for d in inputs if _is_learnt(pair, d, links)}
            if learnt and _is_given_other(inputs, learnt, noise):
                return "inside"
    return "none"


def _end_otherwise(both: Sequence[CallPair], agreements: Mapping[str, CallAgreement]) -> bool:
    """Whether the runs end in other results, or in other gradients."""
    last = next((pair for pair in reversed(both) if pair.phase == "forward"), None)
    back = [pair for pair in both if is_parameter_gradients(pair.name)]
    back = back or [pair for pair in both if pair.phase == "backward"][-1:]
    results = [] if last is None else list(agreements[last.name].outputs)
    gradients = [distance for pair in back for distance in agreements[pair.name].outputs]
    # A gradient that should be 0 is noise and nothing else: it counts by its share of the largest.
    largest = max((_norm(distance) for distance in gradients), default=0.0)
    return any(
        not distance.value <= tolerances.SAME_RESULT * roundoff_of(distance.candidate.dtype)
        for distance in results
    ) or any(
        not distance.value * _norm(distance)
        <= tolerances.SAME_GRADIENT * roundoff_of(distance.candidate.dtype) * largest
        for distance in gradients
    )


def _norm(distance: Distance) -> float:
    norm = distance.reference.norm
    return float(norm) if norm is not None and math.isfinite(norm) else math.inf


def _is_learnt(pair: CallPair, distance: Distance, links: Links) -> bool:
    """Whether an input is a parameter: by its place, or as no call made it and it is trained."""
    if is_parameter(pair, distance):
        return True
    assert pair.reference is not None
    use = Use(pair.reference.name, distance.place)
    is_made = pair.name.startswith("Module.") or use not in links.external
    return bool(distance.reference.requires_grad) and not is_made


def _is_given_other(inputs: Sequence[Distance], learnt: Collection[str], noise: float) -> bool:
    """Whether a call uses parameters that agree, and is given values to use them on that do not."""
    if any(distance.value != 0 for distance in inputs if distance.place in learnt):
        return False
    return any(
        is_float(distance.candidate)
        and distance.basis != "shape"
        and distance.value
        > max(tolerances.SAME_GRADIENT * roundoff_of(distance.candidate.dtype), noise)
        for distance in inputs
        if distance.place not in learnt
    )


def _is_known(distance: Distance) -> bool:
    """Whether something was recorded of a tensor that tells it from others."""
    is_seen = distance.basis in ("data", "shape", "checksum")
    return is_seen or statistics_key(distance.candidate) is not None


def find_follower(
    pair: CallPair,
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    background: float,
    unexplained: Collection[str],
) -> str | None:
    """Return the value that a call behind a lone one starts from and that differs, or None.

    Of what has no statistics, such as masks, that shows in a result that nothing else explains.

    Args:
        pair: the call that only one run makes.
        pairs: all calls, in the order of the run.
        agreements: their distances.
        background: the distance that is usual before it.
        unexplained: calls whose results their inputs do not explain.
    """
    behind = (p for p in pairs[pair.position + 1 :] if p.candidate and p.reference)
    for follower in itertools.islice(behind, _NEAR):
        is_wrong = follower.name in unexplained
        for distance in agreements[follower.name].inputs:
            if is_wrong and not _is_known(distance):
                return f"{follower.name}.{distance.place}"
            if distance.value > max(
                tolerances.SAME_GRADIENT * roundoff_of(distance.candidate.dtype),
                tolerances.BEYOND_NOISE * background,
            ):
                return f"{follower.name}.{distance.place}"
    return None
