"""Find what differs before any operation has run: data, weights, buffers.

A tensor that no recorded call made came from outside. Where such tensors differ by more than a
rounding, no operation is at fault for that. When it is most of the weights, or the data, the runs
differ from the start. When it is the state of one call among many that agree, that call is where
the fault enters, and it is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tensorprobe.blame.agreement import statistics_key
from tensorprobe.blame.links import Links, Use
from tensorprobe.dtypes import roundoff_of, significant_bits
from tensorprobe.operations.facts import LOSSES, PARAMETER_PLACES
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float

__all__ = ["StartDifferences", "find_start_differences", "is_parameter", "may_be_made"]


Kind = Literal["none", "state", "weights", "data"]


@dataclass(frozen=True, slots=True)
class StartDifferences:
    """What came from outside and differs.

    Attributes:
        kind: none, state (of single calls), weights (most of them) or data.
        places: where each of them is used first, with the distances, in the order of the run.
        compared: how many tensors came from outside, each counted once.
    """

    kind: Kind
    places: tuple[tuple[Use, Distance], ...]
    compared: int


def find_start_differences(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    backgrounds: Mapping[str, float],
    typical_in_step_before: float = 0.0,
    unexplained: Collection[str] = (),
) -> StartDifferences:
    """Return the tensors from outside that differ by more than a rounding.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        links: where tensors come from.
        backgrounds: the distance that is usual before each call.
        typical_in_step_before: the distance that is usual in the step before; weights bring it
            along.
        unexplained: calls whose results their inputs do not explain. Behind the first of them, what
            no recorded call made may be its work: not all that runs is recorded.
    """
    outside = list(_find_outside(pairs, agreements, links, backgrounds))
    wrong = next((pair.position for pair in pairs if pair.name in unexplained), len(pairs))
    least = tolerances.USUAL_TIMES * typical_in_step_before
    found = [
        item
        for item in outside
        if (item.pair.position <= wrong or not may_be_made(item.pair, item.distance))
        and _differs(item.distance, max(_noise(item, backgrounds[item.pair.name]), least))
    ]
    kind = _kind_of(found, len(outside), _first_fed(pairs, links))
    if kind in ("data", "weights"):
        # Now that the runs are known to differ from the start, no weight is taken for noise.
        weights = (item for item in outside if _is_own_weight(item) and _differs(item.distance, 0))
        chosen = {id(item) for item in found}
        found += [item for item in weights if id(item) not in chosen]
        found.sort(key=lambda item: item.pair.position)
    places = tuple((Use(item.pair.name, item.distance.place), item.distance) for item in found)
    return StartDifferences(kind, places, len(outside))


class _Outside(NamedTuple):
    """A tensor that no recorded call made, where it is used first.

    Attributes:
        pair: the call that is given it.
        distance: how far it is from its partner.
        noisiest: the largest distance of a result before.
    """

    pair: CallPair
    distance: Distance
    noisiest: float


def _find_outside(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    backgrounds: Mapping[str, float],
) -> Iterator[_Outside]:
    """Yield what forward calls are given from outside, each once, in the order of the run."""
    seen: set[object] = set()
    noisiest = 0.0
    for pair in pairs:
        if pair.phase == "backward":
            # What an optimizer or a collective reads after that are gradients, made by this run.
            break
        if pair.reference is None or pair.candidate is None:
            continue
        for distance in agreements[pair.name].inputs:
            use = Use(pair.reference.name, distance.place)
            key: object = links.external.get(use)
            if use in links.masks and not _may_be_made_here(pair, backgrounds[pair.name]):
                # The same pair of masks is as far apart wherever it is used.
                key = (distance.candidate.shape, distance.value)
            # Biases that are all zeros look alike in one run, and are others in the other.
            both = (key, statistics_key(distance.candidate))
            if key is not None and both not in seen:
                seen.add(both)
                yield _Outside(pair, distance, noisiest)
        results = (d.value for d in agreements[pair.name].outputs if is_float(d.candidate))
        noisiest = max([noisiest, *(value for value in results if value < 1)])


def _first_fed(pairs: Sequence[CallPair], links: Links) -> int:
    """Return the position of the first call that is given something from outside; -1: none."""
    fed = {use.call for use in links.external}
    return next(
        (pair.position for pair in pairs if pair.reference and pair.reference.name in fed), -1
    )


def _kind_of(found: Sequence[_Outside], compared: int, first: int) -> Kind:
    if any(_is_data(item.pair, item.distance, first) for item in found):
        return "data"
    calls = {item.pair.name for item in found}
    is_most = len(found) >= tolerances.START_SHARE * compared
    if len(calls) >= tolerances.START_CALLS and is_most:
        return "weights"
    return "state" if found else "none"


def _is_own_weight(item: _Outside) -> bool:
    """Whether a tensor is a weight of the call, and not handed to a module from outside."""
    is_passed = item.pair.name.startswith("Module.") and item.distance.place.startswith("input")
    return _is_weight(item.distance) and not is_passed


def _noise(item: _Outside, background: float) -> float:
    """Return how far the noise of the calls before may have moved a tensor from outside.

    It does not reach a parameter. What else needs a gradient may be one, or the result of a call
    that was not recorded, unless it is known where its call takes parameters. Such a call may have
    been given the noisiest of all results.
    """
    pair, distance, noisiest = item
    if is_parameter(pair, distance):
        return 0.0
    is_known = pair.name.startswith("Module.") or operation_of(pair.name) in PARAMETER_PLACES
    if not _is_weight(distance):
        return tolerances.USUAL_TIMES * background
    if not is_known:
        return tolerances.PARAMETER_TIMES * background
    return max(tolerances.USUAL_TIMES * background, tolerances.PARAMETER_TIMES * noisiest)


def _may_be_made_here(pair: CallPair, background: float) -> bool:
    """Whether a mask may be what code between modules made of values that are noisy."""
    return pair.name.startswith("Module.") and background > 0


def may_be_made(pair: CallPair, distance: Distance) -> bool:
    """Whether what no recorded call made may be the work of one that was not recorded."""
    return bool(distance.candidate.requires_grad) and not is_parameter(pair, distance)


def _differs(distance: Distance, noise: float) -> bool:
    if math.isnan(distance.value):
        return True
    if not is_float(distance.candidate):
        return distance.value > 0
    bits = min(
        significant_bits(distance.candidate.dtype), significant_bits(distance.reference.dtype)
    )
    made_elsewhere = tolerances.MADE_ELSEWHERE * roundoff_of("torch.float32")
    return distance.value > max(made_elsewhere + tolerances.STORED_ROUNDINGS * 2.0**-bits, noise)


def is_parameter(pair: CallPair, distance: Distance) -> bool:
    """Whether a tensor stands where a model keeps what it has learnt."""
    if distance.place.startswith("parameters"):
        return True
    places = PARAMETER_PLACES.get(operation_of(pair.name), ())
    return distance.place in places and not pair.name.startswith("Module.")


def _is_weight(distance: Distance) -> bool:
    return bool(distance.candidate.requires_grad) or distance.place.startswith("parameters")


def _is_data(pair: CallPair, distance: Distance, first: int) -> bool:
    """Whether a tensor from outside is what the run was fed with: its first input or a target."""
    if _is_weight(distance):
        return False
    if pair.position == first:
        return True
    return operation_of(pair.name) in LOSSES
