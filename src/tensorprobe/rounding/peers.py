"""Hold a call against its peers: the same operation, in the same type, earlier in the same run.

Where statistics are all that is known, peers show what no theory of rounding tells so sharply.

**Where nothing differed so far.** Two runs that have agreed to the last digit, the peers of a
call included, use the same kernels, and the same kernel makes the same result of the same inputs:
the first call that does not is at fault, however small the difference. What has to be ruled out is
that the kernels are not the same and the peers agree by chance: statistics of few bits do not
show that some elements fell to the other side of a rounding. So one statistic that moved by one
rounding is not enough. Largest, smallest and norm are moved by elements of their own, and a mean by
more elements than these if it moved further than they explain.

**Where there is noise.** A norm averages noise out: that of a result in few bits moves hardly more
than it can be told, nor than those of the inputs and of the peers' results. One that moves by
several times as much is scaled. The other way round, what peers do is no fault: where gradients
of weights cancel in one layer, they do in others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.dtypes import roundoff_of, significant_bits
from tensorprobe.operations.facts import EXACT, MATRIX, RANDOM
from tensorprobe.operations.spelling import is_compound, operation_of
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float, largest_element
from tensorprobe.rounding.explain import Call, Unexplained
from tensorprobe.rounding.gain import count_terms, find_gain
from tensorprobe.rounding.limit import Limit, Term
from tensorprobe.rounding.recorded import count_rows, resolutions, underflow

__all__ = ["Peers"]

_Kind = tuple[str, str, str, str]


class Peers:
    """What the calls of a run have shown so far, by their kinds.

    Attributes:
        is_quiet: whether nothing differed so far.
    """

    def __init__(self) -> None:
        self.is_quiet = True
        self._calls = 0
        self._elements: dict[_Kind, int] = {}
        self._norms: dict[_Kind, tuple[int, float]] = {}
        self._most: dict[_Kind, tuple[float, float]] = {}
        self._shapes: set[tuple[_Kind, tuple[tuple[int, ...], ...]]] = set()

    def judge(
        self,
        call: Call,
        agreement: CallAgreement,
        forward: CallAgreement | None,
        hidden: float,
        work: float,
    ) -> Unexplained | None:
        """Return the result of a call that is unlike what its peers have shown, or None.

        Args:
            call: the call.
            agreement: the distances of its own tensors.
            forward: of a backward call: those of its forward call.
            hidden: the noise of its inputs that their statistics do not show.
            work: the roundoff that matrix products of this run work in, 0 for their own.
        """
        if operation_of(call.name) in RANDOM or is_compound(call.name):
            return None
        saved = () if forward is None else (*forward.inputs, *forward.outputs)
        floats = [d for d in agreement.inputs if is_float(d.candidate)]
        given = [*floats, *(d for d in saved if is_float(d.candidate))]
        found: list[Unexplained] = []
        for output in agreement.outputs:
            if output.basis != "statistics" or not is_float(output.candidate):
                continue
            if math.prod(output.candidate.shape) < tolerances.MANY_ELEMENTS or not math.isfinite(
                output.value
            ):
                continue
            if self.is_quiet:
                result = self._judge_first(call, agreement, output, given)
            else:
                result = self._judge_norm(call, output, given, hidden, work)
                if result is not None and operation_of(call.name) in MATRIX:
                    # A product that cancels is moved by more than those that do not.
                    operation = operation_of(call.name)
                    terms = count_terms(operation, output, floats, saved)
                    gain = find_gain(operation, output, floats, saved, terms)
                    result = result if result.times > gain else None
            if result is not None:
                found.append(result)
        return max(found, key=lambda result: result.times, default=None)

    def _judge_first(
        self,
        call: Call,
        agreement: CallAgreement,
        output: Distance,
        given: Sequence[Distance],
    ) -> Unexplained | None:
        unit = roundoff_of(output.candidate.dtype)
        if not output.value >= unit or any(distance.value != 0 for distance in given):
            return None
        peers, _ = self._norms.get(_kind(call, output), (0, 0.0))
        is_rare = self._calls >= tolerances.LONG_SILENCE and peers >= tolerances.ENOUGH_PEERS
        if (
            not is_rare
            and output.value <= 2 * unit
            and _count_moved(output) < tolerances.ENOUGH_MOVED
        ):
            return None
        if self._calls < tolerances.ENOUGH_CALLS or not self._has_peers(call, agreement, output):
            return None
        limit = Limit((Term(unit, "one rounding: its peers agree to the last digit"),))
        return Unexplained(output, limit, 0.0, output.value / unit)

    def _judge_norm(
        self,
        call: Call,
        output: Distance,
        given: Sequence[Distance],
        hidden: float,
        work: float,
    ) -> Unexplained | None:
        bits = significant_bits(output.candidate.dtype)
        if any(significant_bits(d.candidate.dtype) < bits for d in given) or not given:
            return None
        if call.is_exact:
            return None  # A part may have moved by more than the whole.
        peers, most = self._norms.get(_kind(call, output), (0, 0.0))
        norm = _norm(output)
        if peers < tolerances.ENOUGH_PEERS or norm <= most:
            return None
        inherited = max(map(_norm, given))
        slack = tolerances.PEER_NORMS if _is_short(output) else tolerances.PEER_LONG_NORMS
        rounded = max(2.0**-bits, underflow(output), work) / math.sqrt(count_rows(output))
        limit = Limit(
            (
                Term(resolutions(output)[1], "how finely norms are recorded"),
                Term(rounded, "rounding, averaged over the rows"),
                Term(max(inherited, most), "norms of its inputs and of its peers"),
            )
        ).times(slack)
        limit = limit.plus(Term(hidden, "what the inputs do not show", tolerances.HIDDEN_SHARE))
        beyond = norm / limit.total
        return Unexplained(output, limit, inherited, beyond) if beyond > 1 else None

    def excuse(self, call: Call, found: Unexplained) -> bool:
        """Whether peers, any products of matrices among them, are about as far off."""
        output = found.output
        whole, average = self._most.get(_family(call, output), (0.0, 0.0))
        distance = found.times * found.allowed
        is_average = distance <= max(output.averages, default=0.0)
        return distance <= tolerances.LIKE_PEERS * (average if is_average else whole)

    def add(self, call: Call, agreement: CallAgreement, *, is_sound: bool) -> None:
        """Take note of what a call has shown; one that is at fault ends the silence alone."""
        tensors = (*agreement.inputs, *agreement.outputs)
        floats = [output for output in agreement.outputs if is_float(output.candidate)]
        if any(distance.value != 0 for distance in tensors):
            self.is_quiet = False
        elif floats and operation_of(call.name) not in EXACT:
            self._calls += 1
        for output in floats if is_sound else ():
            kind = _kind(call, output)
            if math.isfinite(output.value):
                peers, most = self._norms.get(kind, (0, 0.0))
                self._norms[kind] = peers + 1, max(most, _norm(output))
                family = _family(call, output)
                whole, average = self._most.get(family, (0.0, 0.0))
                averages = max(output.averages, default=0.0)
                self._most[family] = max(whole, output.value), max(average, averages)
            if self.is_quiet:
                count = math.prod(output.candidate.shape)
                self._elements[kind] = self._elements.get(kind, 0) + count
                self._shapes.add((kind, _shapes(tensors)))

    def _has_peers(self, call: Call, agreement: CallAgreement, output: Distance) -> bool:
        kind = _kind(call, output)
        if self._elements.get(kind, 0) < tolerances.ENOUGH_PEER_ELEMENTS:
            return False
        if _is_short(output):
            return True
        return (kind, _shapes((*agreement.inputs, *agreement.outputs))) in self._shapes


def _is_short(output: Distance) -> bool:
    """Whether a result is of 16 bits or fewer.

    Kernels of 32 bits are chosen by shapes, and sum in other orders for others; of fewer bits a
    result is rounded so much that the order seldom shows.
    """
    return significant_bits(output.candidate.dtype) <= significant_bits("torch.float16")


def _kind(call: Call, output: Distance) -> _Kind:
    return operation_of(call.name), call.phase, output.place, output.candidate.dtype


def _family(call: Call, output: Distance) -> _Kind:
    operation, *others = _kind(call, output)
    return ("products" if operation in MATRIX else operation, *others)  # type: ignore[return-value]


def _norm(distance: Distance) -> float:
    """Return how far the norms of a tensor are apart, as far as that is known."""
    return distance.averages[1] if distance.averages else distance.value


def _count_moved(output: Distance) -> int:
    """Return how many of a result's statistics moved, each by elements of its own."""
    mine, other = output.candidate, output.reference
    extremes = [_move(mine.max, other.max), _move(mine.min, other.min)]
    moved = sum(move > 0 for move in (*extremes, _move(mine.norm, other.norm)))
    mean = _move(mine.mean, other.mean) - resolutions(output)[0] * largest_element(other)
    return moved + (mean * math.prod(mine.shape) > tolerances.MEAN_BEYOND * sum(extremes))


def _move(mine: float | None, other: float | None) -> float:
    return 0.0 if mine is None or other is None else abs(float(mine) - float(other))


def _shapes(tensors: Sequence[Distance]) -> tuple[tuple[int, ...], ...]:
    return tuple(distance.candidate.shape for distance in tensors)
