"""Find what differs before any operation has run: data, weights, buffers.

A tensor that no recorded call made came from outside. Where such tensors differ by more than a
rounding, no operation is at fault for that. When it is most of the weights, or the data, the runs
differ from the start. When it is the state of one call among many that agree, that call is where
the fault enters, and it is named.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

from tensorprobe.blame.agreement import CallAgreement, Distance, is_float, significant_bits
from tensorprobe.blame.links import Links, Use
from tensorprobe.blame.operations import LOSSES, PARAMETER_PLACES, operation_of
from tensorprobe.blame.order import CallPair

__all__ = ["StartDifferences", "find_start_differences"]

# A value that was made elsewhere by another kernel is off by some roundings of float32, and by a
# few of the type that it is stored in.
_ROUNDINGS = 64 * 2.0**-24
_STORED = 4
# Times the usual distance: what noise makes of a tensor, and of one that is likely a parameter.
_TIMES = 16
_TIMES_UNSURE = 4
# From this many calls on, and this share of all tensors, weights were not loaded or drawn alike.
_MANY = 3
_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class StartDifferences:
    """What came from outside and differs.

    Attributes:
        kind: none, state (of single calls), weights (most of them) or data.
        places: where, with the distances, in the order of the run.
        compared: how many tensors came from outside.
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
    unexplained: Container[str] = (),
) -> StartDifferences:
    """Return the tensors from outside that differ by more than a rounding.

    Args:
        pairs: all calls, in the order of the run.
        agreements: their distances.
        links: where tensors come from.
        backgrounds: the distance that is usual before each call.
        carried: the distance that is usual in the step before, which weights bring along.
        unexplained: calls whose results are off by more than inputs and rounding explain. What
            comes later and needs a gradient may be made of such a result, by calls that were not
            recorded.
    """
    fed = {use.call for use in links.external}
    first = next(
        (pair.position for pair in pairs if pair.reference and pair.reference.name in fed), -1
    )
    # What an optimizer or a collective reads after that are gradients, made by this run.
    back = next((pair.position for pair in pairs if pair.phase == "backward"), len(pairs))
    found: list[tuple[Use, Distance, bool]] = []
    seen: set[object] = set()
    most, is_spoilt = 0.0, False
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
            if key is None or key in seen:
                continue
            if is_spoilt and _is_weight(distance) and not _is_parameter(pair, distance):
                continue
            seen.add(key)
            noise = _noise(pair, distance, backgrounds[pair.name], most)
            if _differs(distance, max(noise, _TIMES * carried)):
                found.append(
                    (Use(pair.name, distance.place), distance, _is_data(pair, distance, first))
                )
        results = (d.value for d in agreements[pair.name].outputs if is_float(d.candidate))
        is_spoilt = is_spoilt or pair.name in unexplained
        most = max([most, *(value for value in results if value < 1)])
    places = tuple((use, distance) for use, distance, _ in found)
    if any(is_data for _, _, is_data in found):
        kind: Literal["none", "state", "weights", "data"] = "data"
    elif len({use.call for use, _ in places}) >= _MANY and len(found) >= _SHARE * len(seen):
        kind = "weights"
    else:
        kind = "state" if found else "none"
    return StartDifferences(kind, places, len(seen))


def _noise(pair: CallPair, distance: Distance, background: float, most: float) -> float:
    """Return how far the noise of the calls before may have moved a tensor from outside.

    It does not reach a parameter. What else needs a gradient may be one, or the result of a call
    that was not recorded, unless it is known where its call takes parameters. Such a call may have
    been given the noisiest of all results.
    """
    if _is_parameter(pair, distance):
        return 0.0
    is_known = pair.name.startswith("Module.") or operation_of(pair.name) in PARAMETER_PLACES
    if not _is_weight(distance):
        return _TIMES * background
    if not is_known:
        return _TIMES_UNSURE * background
    return max(_TIMES * background, _TIMES_UNSURE * most)


def _may_be_made_here(pair: CallPair, background: float) -> bool:
    """Whether a mask may be what code between modules made of values that are noisy."""
    return pair.name.startswith("Module.") and background > 0


def _differs(distance: Distance, noise: float) -> bool:
    if math.isnan(distance.value):
        return True
    if not is_float(distance.candidate):
        return distance.value > 0
    bits = min(
        significant_bits(distance.candidate.dtype), significant_bits(distance.reference.dtype)
    )
    return distance.value > max(_ROUNDINGS + _STORED * 2.0**-bits, noise)


def _is_parameter(pair: CallPair, distance: Distance) -> bool:
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
