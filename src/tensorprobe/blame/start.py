"""Find what differs before any operation has run: data, weights, buffers.

A tensor that no recorded call made came from outside. Where such tensors differ by more than a
rounding, no operation is at fault for that. When it is most of the weights, or the data, the runs
differ from the start. When it is the state of one call among many that agree, that call is where
the fault enters, and it is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from tensorprobe.blame.agreement import statistics_key
from tensorprobe.blame.links import Links, Use
from tensorprobe.dtypes import roundoff_of, significant_bits
from tensorprobe.operations.facts import LOSSES, PARAMETER_PLACES
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float

__all__ = ["StartDifferences", "find_start_differences", "is_parameter", "may_be_made"]


@dataclass(frozen=True, slots=True)
class StartDifferences:
    """What came from outside and differs.

    Attributes:
        kind: none, state (of single calls), weights (most of them) or data.
        places: where each of them is used first, with the distances, in the order of the run.
        compared: how many tensors came from outside, each counted once.
    """

    kind: Literal["none", "state", "weights", "data"]
    places: tuple[tuple[Use, Distance], ...]
    compared: int


def find_start_differences(
    pairs: list[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    backgrounds: Mapping[str, float],
    carried: float = 0.0,
    unexplained: Collection[str] = (),
) -> StartDifferences:
    """Return the tensors from outside that differ by more than a rounding.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        links: where tensors come from.
        backgrounds: the distance that is usual before each call.
        carried: the distance that is usual in the step before, which weights bring along.
        unexplained: calls whose results their inputs do not explain. Behind the first of them, what
            no recorded call made may be its work: not all that runs is recorded.
    """
    fed = {use.call for use in links.external}
    first = next(
        (pair.position for pair in pairs if pair.reference and pair.reference.name in fed), -1
    )
    # What an optimizer or a collective reads after that are gradients, made by this run.
    back = next((pair.position for pair in pairs if pair.phase == "backward"), len(pairs))
    wrong = next((pair.position for pair in pairs if pair.name in unexplained), len(pairs))
    found: list[tuple[Use, Distance, bool]] = []
    weights: list[tuple[Use, Distance]] = []
    seen: set[object] = set()
    most = 0.0
    for pair in pairs:
        if pair.phase != "forward" or pair.reference is None or pair.candidate is None:
            continue
        if pair.position > back:
            break
        for distance in agreements[pair.name].inputs:
            use = Use(pair.reference.name, distance.place)
            key: object = links.external.get(use)
            if use in links.masks and not _may_be_made_here(pair, backgrounds[pair.name]):
                # The same pair of masks is as far apart wherever it is used.
                key = (distance.candidate.shape, distance.value)
            if key is None:
                continue
            # Biases that are all zeros look alike in one run, and are others in the other.
            key = (key, statistics_key(distance.candidate))
            if key in seen:
                continue
            seen.add(key)
            is_passed = pair.name.startswith("Module.") and distance.place.startswith("input")
            if _is_weight(distance) and not is_passed and _differs(distance, 0.0):
                weights.append((Use(pair.name, distance.place), distance))
            if pair.position > wrong and may_be_made(pair, distance):
                continue
            noise = _noise(pair, distance, backgrounds[pair.name], most)
            if _differs(distance, max(noise, tolerances.USUAL_TIMES * carried)):
                found.append(
                    (Use(pair.name, distance.place), distance, _is_data(pair, distance, first))
                )
        results = (d.value for d in agreements[pair.name].outputs if is_float(d.candidate))
        most = max([most, *(value for value in results if value < 1)])
    places = tuple((use, distance) for use, distance, _ in found)
    if any(is_data for _, _, is_data in found):
        kind: Literal["none", "state", "weights", "data"] = "data"
    elif len({use.call for use, _ in places}) >= tolerances.START_CALLS and len(
        found
    ) >= tolerances.START_SHARE * len(seen):
        kind = "weights"
    else:
        kind = "state" if found else "none"
    if kind in ("data", "weights"):
        # Now that the runs are known to differ from the start, no weight is taken for noise.
        chosen = dict(places)
        order = {pair.name: pair.position for pair in pairs if pair.candidate is not None}
        chosen.update(weights)
        places = tuple(sorted(chosen.items(), key=lambda item: order[item[0].call]))
    return StartDifferences(kind, places, len(seen))


def _noise(pair: CallPair, distance: Distance, background: float, most: float) -> float:
    """Return how far the noise of the calls before may have moved a tensor from outside.

    It does not reach a parameter. What else needs a gradient may be one, or the result of a call
    that was not recorded, unless it is known where its call takes parameters. Such a call may have
    been given the noisiest of all results.
    """
    if is_parameter(pair, distance):
        return 0.0
    is_known = pair.name.startswith("Module.") or operation_of(pair.name) in PARAMETER_PLACES
    if not _is_weight(distance):
        return tolerances.USUAL_TIMES * background
    if not is_known:
        return tolerances.PARAMETER_TIMES * background
    return max(tolerances.USUAL_TIMES * background, tolerances.PARAMETER_TIMES * most)


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
