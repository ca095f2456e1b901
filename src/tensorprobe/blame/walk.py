"""What distances show in the order of the run, before anything is replayed."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

from tensorprobe.blame.unseen import Unseen
from tensorprobe.dtypes import TF32_ROUNDOFF, roundoff_of
from tensorprobe.errors import NameFormatError
from tensorprobe.names import ModuleCall, ParameterGradients, forward_of, parse_call
from tensorprobe.operations.facts import EXACT, MANY_STEPS, MATRIX, UNINITIALISED
from tensorprobe.operations.spelling import is_compound, operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float
from tensorprobe.rounding.explain import Background, Unexplained, explain_call
from tensorprobe.rounding.peers import Peers

__all__ = ["Walk"]


class _Seen:
    """The distances of what came before, sorted, for their medians."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._averages: list[float] = []
        self._singles: list[float] = []

    def add(self, output: Distance) -> None:
        if 0 < output.value < 1:
            bisect.insort(self._values, output.value)
        average = max(output.averages, default=0.0)
        if 0 < average < 1:
            bisect.insort(self._averages, average)
            count = max(1, math.prod(output.candidate.shape))
            bisect.insort(self._singles, average * math.sqrt(count))

    def background(self) -> Background:
        return Background(*map(_median, (self._values, self._averages, self._singles)))


def _median(numbers: list[float]) -> float:
    return numbers[len(numbers) // 2] if numbers else 0.0


class Walk:
    """What the distances show in the order of the run.

    Attributes:
        unexplained: the results that inputs do not explain, by call.
        typical_distance: the distance that results usually have, before anything unexplained.
        typical_before: what was typical before each call.
        typical_at: the same by the place in the run: a call that only the reference has may carry
            the name of another one of the candidate's.
        hidden: the noise of each call's inputs that statistics do not show.
        work: the roundoff of matrix products, where the first of them shows it; else 0.
    """

    def __init__(self, pairs: Sequence[CallPair], agreements: Mapping[str, CallAgreement]) -> None:
        self.unexplained: dict[str, Unexplained] = {}
        self.typical_before: dict[str, float] = {}
        self.typical_at: dict[int, float] = {}
        self.hidden: dict[str, float] = {}
        self._backgrounds: dict[str, Background] = {}
        self.work = self._find_work(pairs, agreements)
        seen, back, peers, unseen = _Seen(), _Seen(), Peers(), Unseen()
        self.typical_distance = 0.0
        first_back = next((p.position for p in pairs if p.phase == "backward"), len(pairs))
        for pair in pairs:
            background = seen.background()
            if pair.phase == "backward":
                # Gradients cancel, and some turn over: the way back has more noise than the way up.
                background = background.or_more(back.background())
            self.typical_at[pair.position] = background.value
            if pair.candidate is None or pair.reference is None:
                self.typical_before.setdefault(pair.name, background.value)
                peers.is_quiet = False
                continue
            agreement = agreements[pair.name]
            self.typical_before[pair.name] = background.value
            self._backgrounds[pair.name] = background
            if operation_of(pair.name) in UNINITIALISED:
                continue  # Memory as it was found is no noise of the run.
            given, forward = _given_to(pair, agreements)
            usual = 0.0 if peers.is_quiet else max(background.value, self.work)
            hidden = self.hidden[pair.name] = unseen.follow(pair, given, forward, usual)
            found = explain_call(pair, given, forward, background, self.work, hidden)
            if found is not None and peers.excuse(pair, found):
                found = None
            found = found or peers.judge(pair, given, forward, hidden, self.work)
            peers.add(pair, agreement, is_sound=found is None)
            if found is not None:
                self.unexplained[pair.name] = found
            elif not self.unexplained and not _is_copy_on_the_way_back(pair, first_back):
                for output in agreement.outputs:
                    if is_float(output.candidate):
                        seen.add(output)
                        if pair.phase == "backward":
                            back.add(output)
                self.typical_distance = seen.background().value

    def explain(
        self, pair: CallPair, agreements: Mapping[str, CallAgreement], work: float
    ) -> Unexplained | None:
        """Judge a call again, with another roundoff of matrix products."""
        given, forward = _given_to(pair, agreements)
        usual, hidden = self._backgrounds[pair.name], self.hidden[pair.name]
        return explain_call(pair, given, forward, usual, work, hidden)

    @staticmethod
    def _find_work(pairs: Sequence[CallPair], agreements: Mapping[str, CallAgreement]) -> float:
        """Return the roundoff that the run's first matrix product with equal inputs works in."""
        for pair in pairs:
            if operation_of(pair.name) not in MATRIX or pair.phase != "forward":
                continue
            agreement = agreements[pair.name]
            if not agreement.outputs or agreement.outputs[0].basis == "shape":
                continue
            own = roundoff_of(agreement.outputs[0].candidate.dtype)
            if any(not d.value <= tolerances.EQUAL_INPUTS * own for d in agreement.inputs):
                continue
            if explain_call(pair, agreement, None, Background(), 0.0) is None:
                if operation_of(pair.name) in MANY_STEPS:
                    continue  # Libraries choose for recurrent networks on their own.
                return 0.0
            if any(
                output.value == 0 and is_float(output.candidate) for output in agreement.outputs
            ):
                return 0.0  # Operands of fewer bits move all that a call returns.
            found = explain_call(pair, agreement, None, Background(), TF32_ROUNDOFF)
            return TF32_ROUNDOFF if found is None else 0.0
        return 0.0


def _is_copy_on_the_way_back(pair: CallPair, first_back: int) -> bool:
    """Whether a hook or an optimizer copies what was made before: no noise of its own shows."""
    is_forward = pair.phase == "forward" and pair.position > first_back
    return is_forward and operation_of(pair.name) in EXACT


def _given_to(
    pair: CallPair, agreements: Mapping[str, CallAgreement]
) -> tuple[CallAgreement, CallAgreement | None]:
    """Return the distances of a call's tensors, and of a gradient those of its forward call.

    Gradients of parameters are recorded without what they are made from: what arrived at their
    module. Where a module ran more than once, or is many steps that nobody knows, they are given
    themselves, which excuses all.
    """
    agreement = agreements[pair.name]
    if pair.phase == "forward":
        return agreement, None
    try:
        call = parse_call(pair.name)
        if not isinstance(call, ParameterGradients):
            return agreement, agreements.get(forward_of(pair.name))
    except NameFormatError:
        return agreement, None
    number = call.number or 0
    first, second, after = (
        ModuleCall(call.path, call.class_name, "forward", number),
        ModuleCall(call.path, call.class_name, "backward", number),
        ModuleCall(call.path, call.class_name, "forward", number + 1),
    )
    forward, backward, again = (agreements.get(str(name)) for name in (first, second, after))
    is_known = operation_of(pair.name) in MATRIX or not is_compound(pair.name)
    if forward is None or backward is None or again is not None or not is_known:
        return agreement, agreement
    return CallAgreement(backward.inputs, agreement.outputs), forward
