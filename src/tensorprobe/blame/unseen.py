"""Follow the noise that statistics do not show: of fewer bits, and of gates.

A tensor of float32 may have been one of 16 bits before: cast by autocast, or a gradient of such a
one. What noise moved there by a rounding of 16 bits, statistics of 16 bits do not show; those of
float32 show it, and the call that comes next is not at fault for that.

An operation with a kink lets a gradient through or not. Where its input is noise from the kink, the
gate of that element may stand the other way in the other run, and its gradient is off by all of
itself. A share d of noise turns about a share d of the gates, which moves the gradient by sqrt(d)
of its norm, and hardly any of its statistics until a product spreads it.
"""

from __future__ import annotations

import math

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.dtypes import EXACT_BITS, roundoff_of, significant_bits
from tensorprobe.operations.facts import GATES, PARAMETER_PLACES
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float

__all__ = ["Unseen"]


class Unseen:
    """What the tensors of a run have been through: how few bits, and how many gates that turn."""

    def __init__(self) -> None:
        self._bits: dict[StatisticsKey, int] = {}
        self._fewest: dict[str, int] = {}
        self._gates: dict[StatisticsKey, float] = {}
        self._widest = 0.0

    def follow(
        self,
        pair: CallPair,
        agreement: CallAgreement,
        forward: CallAgreement | None,
        usual: float,
    ) -> float:
        """Return the noise of a call's inputs that is not seen, and take note of its results.

        Args:
            pair: the call.
            agreement: the distances of its own tensors.
            forward: of a backward call: those of its forward call.
            usual: how far results of the run are usually apart, 0 while nothing differs.
        """
        bits = self._bits_given(pair, agreement, forward)
        gates = self._gates_given(pair, agreement, forward, usual)
        tensors = [*agreement.inputs, *agreement.outputs]
        if forward is not None:
            tensors += (*forward.inputs, *forward.outputs)
        for output in agreement.outputs:
            key = statistics_key(output.candidate)
            if not is_float(output.candidate) or key is None:
                continue
            own = min(bits, significant_bits(output.candidate.dtype))
            self._bits[key], self._gates[key] = own, gates
            self._fewest[pair.phase] = min(own, self._fewest.get(pair.phase, EXACT_BITS))
            self._widest = max(self._widest, gates)
        shown = [significant_bits(d.candidate.dtype) for d in tensors if is_float(d.candidate)]
        return max(gates, 2.0**-bits if bits < min(shown, default=0) else 0.0)

    def _bits_given(
        self, pair: CallPair, agreement: CallAgreement, forward: CallAgreement | None
    ) -> int:
        given = [self._bits_of(pair, distance) for distance in agreement.inputs]
        if forward is not None:
            given += [self._known(d) for d in (*forward.inputs, *forward.outputs)]
        return min(given, default=EXACT_BITS)

    def _bits_of(self, pair: CallPair, distance: Distance) -> int:
        """Return the bits of an input; one that no call made may have come from any before."""
        if not is_float(distance.candidate):
            return EXACT_BITS
        own = significant_bits(distance.candidate.dtype)
        key = statistics_key(distance.candidate)
        known = None if key is None else self._bits.get(key)
        if known is not None:
            return min(own, known)
        if pair.phase == "forward":
            places = PARAMETER_PLACES.get(operation_of(pair.name), ())
            if distance.place in places or not distance.candidate.requires_grad:
                return own
        return min(own, self._fewest.get(pair.phase, own))

    def _known(self, distance: Distance) -> int:
        if not is_float(distance.candidate):
            return EXACT_BITS
        own = significant_bits(distance.candidate.dtype)
        key = statistics_key(distance.candidate)
        return own if key is None else min(own, self._bits.get(key, own))

    def _gates_given(
        self,
        pair: CallPair,
        agreement: CallAgreement,
        forward: CallAgreement | None,
        usual: float,
    ) -> float:
        if pair.phase == "forward":
            return 0.0
        given = [statistics_key(d.candidate) for d in agreement.inputs if is_float(d.candidate)]
        gates = max((self._gates.get(key, self._widest) for key in given if key), default=0.0)
        if operation_of(pair.name) not in GATES or forward is None or not usual:
            return gates
        inputs = [d for d in forward.inputs if is_float(d.candidate)]
        noise = max((_noise(d) for d in inputs if math.isfinite(d.value)), default=0.0)
        share = min(1.0, max(noise, usual))
        count = max((math.prod(d.candidate.shape) for d in inputs), default=0)
        return max(gates, math.sqrt(share)) if count * share > tolerances.GATE_CHANCE else gates


def _noise(distance: Distance) -> float:
    unit = roundoff_of(distance.candidate.dtype)
    return max(distance.value, unit)
