"""Hold a call against its siblings: the same operation, in the same type, earlier in the same run.

Where statistics are all that is known, siblings show what no theory of rounding tells so sharply.

**Where nothing differed so far.** Two runs that have agreed to the last digit, the siblings of a
call included, use the same kernels, and the same kernel makes the same result of the same inputs:
the first call that does not is at fault, however small the difference. What has to be ruled out is
that the kernels are not the same and the siblings agree by chance: statistics of few bits do not
show that some elements fell to the other side of a rounding. So one statistic that moved by one
rounding is not enough. Largest, smallest and norm are moved by elements of their own, and a mean by
more elements than these if it moved further than they explain.

**Where there is noise.** A norm averages noise out: that of a result in few bits moves hardly more
than it can be told, nor than those of the inputs and of the siblings' results. One that moves by
several times as much is scaled. The other way round, what siblings do is no fault: where gradients
of weights cancel in one layer, they do in others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.blame.agreement import CallAgreement, Distance, is_float, largest_element
from tensorprobe.blame.explain import Unexplained, count_rows, resolutions, underflow
from tensorprobe.blame.gain import count_terms, find_gain
from tensorprobe.blame.order import CallPair
from tensorprobe.dtypes import roundoff_of, significant_bits
from tensorprobe.operations.facts import EXACT, MATRIX, RANDOM
from tensorprobe.operations.spelling import is_compound, operation_of

__all__ = ["Siblings"]

# So many results that were rounded have to agree before anything is known of the kernels, with so
# many elements in the siblings.
_ENOUGH_CALLS = 5
_ENOUGH_ELEMENTS = 256
# One element may move by a rounding and be the largest; two statistics are more than that. After
# so many results, none of whose largest and smallest moved, it is not by chance either.
_ENOUGH_MOVED = 2
_LONG_SILENCE = 50
_BEYOND = 3.0
# Of fewer elements each is the largest or the smallest too often.
_MANY = 32
# Kernels of 32 bits are chosen by shapes, and sum in other orders for others; of 16 bits and fewer
# a result is rounded so much that the order seldom shows.
_SHORT = 11
# Against siblings, norms of noise alone stay below 1, those of TF32 below 4; and enough of them to
# know what they do. Of noise that is not seen a norm shows a part.
_NORMS = 2.5
_LONG_NORMS = 8.0
_HIDDEN = 0.25
_ENOUGH_SIBLINGS = 2
# So many times as far off as a sibling is still like it.
_LIKE = 5.0

_Kind = tuple[str, str, str, str]


class Siblings:
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
        pair: CallPair,
        agreement: CallAgreement,
        forward: CallAgreement | None,
        hidden: float,
        work: float,
    ) -> Unexplained | None:
        """Return the result of a call that is unlike what its siblings have shown, or None.

        Args:
            pair: the call.
            agreement: the distances of its own tensors.
            forward: of a backward call: those of its forward call.
            hidden: the noise of its inputs that their statistics do not show.
            work: the roundoff that matrix products of this run work in, 0 for their own.
        """
        if operation_of(pair.name) in RANDOM or is_compound(pair.name):
            return None
        saved = () if forward is None else (*forward.inputs, *forward.outputs)
        floats = [d for d in agreement.inputs if is_float(d.candidate)]
        given = [*floats, *(d for d in saved if is_float(d.candidate))]
        found: list[Unexplained] = []
        for output in agreement.outputs:
            if output.basis != "statistics" or not is_float(output.candidate):
                continue
            if math.prod(output.candidate.shape) < _MANY or not math.isfinite(output.value):
                continue
            if self.is_quiet:
                result = self._judge_first(pair, agreement, output, given)
            else:
                result = self._judge_norm(pair, output, given, hidden, work)
                if result is not None and operation_of(pair.name) in MATRIX:
                    # A product that cancels is moved by more than those that do not.
                    operation = operation_of(pair.name)
                    terms = count_terms(operation, output, floats, saved)
                    gain = find_gain(operation, output, floats, saved, terms)
                    result = result if result.times > gain else None
            if result is not None:
                found.append(result)
        return max(found, key=lambda result: result.times, default=None)

    def _judge_first(
        self,
        pair: CallPair,
        agreement: CallAgreement,
        output: Distance,
        given: Sequence[Distance],
    ) -> Unexplained | None:
        unit = roundoff_of(output.candidate.dtype)
        if not output.value >= unit or any(distance.value != 0 for distance in given):
            return None
        siblings, _ = self._norms.get(_kind(pair, output), (0, 0.0))
        is_rare = self._calls >= _LONG_SILENCE and siblings >= _ENOUGH_SIBLINGS
        if not is_rare and output.value <= 2 * unit and _count_moved(output) < _ENOUGH_MOVED:
            return None
        if self._calls < _ENOUGH_CALLS or not self._has_siblings(pair, agreement, output):
            return None
        return Unexplained(output, unit, 0.0, output.value / unit)

    def _judge_norm(
        self,
        pair: CallPair,
        output: Distance,
        given: Sequence[Distance],
        hidden: float,
        work: float,
    ) -> Unexplained | None:
        bits = significant_bits(output.candidate.dtype)
        if any(significant_bits(d.candidate.dtype) < bits for d in given) or not given:
            return None
        if operation_of(pair.name) in EXACT and pair.phase == "forward":
            return None  # A part may have moved by more than the whole.
        siblings, most = self._norms.get(_kind(pair, output), (0, 0.0))
        norm = _norm(output)
        if siblings < _ENOUGH_SIBLINGS or norm <= most:
            return None
        inherited = max(map(_norm, given))
        times = _NORMS if bits <= _SHORT else _LONG_NORMS
        rounded = max(2.0**-bits, underflow(output), work) / math.sqrt(count_rows(output))
        limit = times * (resolutions(output)[1] + rounded + max(inherited, most))
        limit += _HIDDEN * hidden
        return Unexplained(output, limit, inherited, norm / limit) if norm > limit else None

    def excuse(self, pair: CallPair, found: Unexplained) -> bool:
        """Whether siblings, any products of matrices among them, are about as far off."""
        output = found.output
        whole, average = self._most.get(_family(pair, output), (0.0, 0.0))
        distance = found.times * found.allowed
        is_average = distance <= max(output.averages, default=0.0)
        return distance <= _LIKE * (average if is_average else whole)

    def add(self, pair: CallPair, agreement: CallAgreement, *, is_sound: bool) -> None:
        """Take note of what a call has shown; one that is at fault ends the silence alone."""
        tensors = (*agreement.inputs, *agreement.outputs)
        floats = [output for output in agreement.outputs if is_float(output.candidate)]
        if any(distance.value != 0 for distance in tensors):
            self.is_quiet = False
        elif floats and operation_of(pair.name) not in EXACT:
            self._calls += 1
        for output in floats if is_sound else ():
            kind = _kind(pair, output)
            if math.isfinite(output.value):
                siblings, most = self._norms.get(kind, (0, 0.0))
                self._norms[kind] = siblings + 1, max(most, _norm(output))
                family = _family(pair, output)
                whole, average = self._most.get(family, (0.0, 0.0))
                averages = max(output.averages, default=0.0)
                self._most[family] = max(whole, output.value), max(average, averages)
            if self.is_quiet:
                count = math.prod(output.candidate.shape)
                self._elements[kind] = self._elements.get(kind, 0) + count
                self._shapes.add((kind, _shapes(tensors)))

    def _has_siblings(self, pair: CallPair, agreement: CallAgreement, output: Distance) -> bool:
        kind = _kind(pair, output)
        if self._elements.get(kind, 0) < _ENOUGH_ELEMENTS:
            return False
        if significant_bits(output.candidate.dtype) <= _SHORT:
            return True
        return (kind, _shapes((*agreement.inputs, *agreement.outputs))) in self._shapes


def _kind(pair: CallPair, output: Distance) -> _Kind:
    return operation_of(pair.name), pair.phase, output.place, output.candidate.dtype


def _family(pair: CallPair, output: Distance) -> _Kind:
    operation, *others = _kind(pair, output)
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
    return moved + (mean * math.prod(mine.shape) > _BEYOND * sum(extremes))


def _move(mine: float | None, other: float | None) -> float:
    return 0.0 if mine is None or other is None else abs(float(mine) - float(other))


def _shapes(tensors: Sequence[Distance]) -> tuple[tuple[int, ...], ...]:
    return tuple(distance.candidate.shape for distance in tensors)
