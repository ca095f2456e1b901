"""Hold a call against its siblings: the same operation, in the same type, earlier in the same run.

Where statistics are all that is known, siblings show what no theory of rounding tells so sharply.

**Where nothing differed so far.** Two runs that have agreed to the last digit, the siblings of a
call included, use the same kernels, and the same kernel makes the same result of the same inputs:
the first call that does not is at fault, however small the difference. What has to be ruled out is
that the kernels are not the same and the siblings agree by chance. Statistics show when elements
fall to the other side of a rounding, unless these are few, and few elements are seldom the largest
or the smallest of many.

**Where there is noise.** A norm averages noise out: that of a result in few bits moves hardly more
than it can be told, nor than those of the inputs and of the siblings' results. One that moves by
several times as much is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprobe.blame.agreement import CallAgreement, Distance, is_float, significant_bits
from tensorprobe.blame.explain import Unexplained, resolutions
from tensorprobe.blame.operations import EXACT, RANDOM, is_compound, operation_of
from tensorprobe.blame.order import CallPair

__all__ = ["Siblings"]

# So many results that were rounded have to agree before anything is known of the kernels, with so
# many elements in the siblings.
_ENOUGH_CALLS = 5
_ENOUGH_ELEMENTS = 256
# Of fewer elements each is the largest or the smallest too often.
_MANY = 32
# Kernels of 32 bits are chosen by shapes, and sum in other orders for others; of 16 bits and fewer
# a result is rounded so much that the order seldom shows.
_SHORT = 11
# Against siblings, norms of noise alone stay below 1; and enough of them to know what they do.
_NORMS = 2.5
_ENOUGH_SIBLINGS = 2

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
        self._norms: dict[_Kind, list[float]] = {}
        self._shapes: set[tuple[_Kind, tuple[tuple[int, ...], ...]]] = set()

    def judge(
        self, pair: CallPair, agreement: CallAgreement, forward: CallAgreement | None
    ) -> Unexplained | None:
        """Return the result of a call that is unlike what its siblings have shown, or None."""
        if operation_of(pair.name) in RANDOM or is_compound(pair.name):
            return None
        saved = () if forward is None else (*forward.inputs, *forward.outputs)
        given = [d for d in (*agreement.inputs, *saved) if is_float(d.candidate)]
        found: list[Unexplained] = []
        for output in agreement.outputs:
            if output.basis != "statistics" or not is_float(output.candidate):
                continue
            if math.prod(output.candidate.shape) < _MANY or not math.isfinite(output.value):
                continue
            if self.is_quiet:
                result = self._judge_first(pair, agreement, output, given)
            else:
                result = self._judge_norm(pair, output, given)
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
        unit = 2.0 ** -significant_bits(output.candidate.dtype)
        if not output.value >= unit or any(distance.value != 0 for distance in given):
            return None
        if self._calls < _ENOUGH_CALLS or not self._has_siblings(pair, agreement, output):
            return None
        return Unexplained(output, unit, 0.0, output.value / unit)

    def _judge_norm(
        self, pair: CallPair, output: Distance, given: Sequence[Distance]
    ) -> Unexplained | None:
        if significant_bits(output.candidate.dtype) > _SHORT or not given:
            return None
        siblings = self._norms.get(_kind(pair, output), [])
        if len(siblings) < _ENOUGH_SIBLINGS:
            return None
        inherited = max(map(_norm, given))
        limit = _NORMS * (resolutions(output)[1] + max(inherited, *siblings))
        norm = _norm(output)
        return Unexplained(output, limit, inherited, norm / limit) if norm > limit else None

    def add(self, pair: CallPair, agreement: CallAgreement) -> None:
        """Take note of what a call has shown."""
        tensors = (*agreement.inputs, *agreement.outputs)
        floats = [output for output in agreement.outputs if is_float(output.candidate)]
        if any(distance.value != 0 for distance in tensors):
            self.is_quiet = False
        elif floats and operation_of(pair.name) not in EXACT:
            self._calls += 1
        for output in floats:
            kind = _kind(pair, output)
            if math.isfinite(output.value):
                self._norms.setdefault(kind, []).append(_norm(output))
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


def _norm(distance: Distance) -> float:
    """Return how far the norms of a tensor are apart, as far as that is known."""
    return distance.averages[1] if distance.averages else distance.value


def _shapes(tensors: Sequence[Distance]) -> tuple[tuple[int, ...], ...]:
    return tuple(distance.candidate.shape for distance in tensors)
