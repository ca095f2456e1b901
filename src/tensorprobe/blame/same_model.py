"""Tell whether two runs are of the same model at all.

Runs of one model use parameters of the same shapes, whatever calls they make of them; and runs that
make the same calls, with results of the same shapes, compute the same thing, whatever is known of
their parameters. Where neither holds, calls are paired by nothing but their names, and no
difference between them says anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorprobe.operations.facts import PARAMETER_PLACES
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, TensorValue, results_of
from tensorprobe.rounding import tolerances

__all__ = ["Mismatch", "find_mismatch"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How little two runs have in common.

    Attributes:
        calls: how many forward calls both make, with results of the same shapes.
        of_calls: how many the run makes that has fewer.
        parameters: how many parameters of the same shapes both use.
        of_parameters: how many the run uses that has fewer.
    """

    calls: int
    of_calls: int
    parameters: int
    of_parameters: int

    def __str__(self) -> str:
        text = (
            f"the two runs do not match: of the {self.of_calls} forward calls of the smaller one "
            f"{self.calls} are in both with results of the same shapes"
        )
        if self.of_parameters:
            text += (
                f", of its {self.of_parameters} parameters {self.parameters} have their like in "
                "the other"
            )
        return f"{text}; nobody can be blamed"


def find_mismatch(pairs: Sequence[CallPair]) -> Mismatch | None:
    """Return how little two runs have in common, if that is too little to be of one model."""
    forward = [pair for pair in pairs if pair.phase == "forward"]
    ours = [pair.candidate for pair in forward if pair.candidate is not None]
    theirs = [pair.reference for pair in forward if pair.reference is not None]
    fewer = min(len(ours), len(theirs))
    alike = sum(_gives_alike(pair) for pair in forward)
    if fewer < tolerances.MODEL_CALLS or alike >= tolerances.MODEL_SHARE * fewer:
        return None
    mine, other = _shapes_of_parameters(ours), _shapes_of_parameters(theirs)
    known, common = min(mine.total(), other.total()), (mine & other).total()
    if known >= tolerances.MODEL_CALLS and common >= tolerances.MODEL_SHARE * known:
        return None
    if known < tolerances.MODEL_CALLS and _share_operations(ours, theirs):
        return None
    return Mismatch(alike, fewer, common, known)


def _share_operations(ours: Sequence[CallRecord], theirs: Sequence[CallRecord]) -> bool:
    """Whether two runs make mostly the same calls, on whatever sizes."""
    mine, other = (Counter(operation_of(call.name) for call in run) for run in (ours, theirs))
    return (mine & other).total() >= tolerances.MODEL_SHARE * min(mine.total(), other.total())


def _gives_alike(pair: CallPair) -> bool:
    if pair.candidate is None or pair.reference is None:
        return False
    shapes = [
        [None if value is None else value.shape for value in results_of(call)]
        for call in (pair.candidate, pair.reference)
    ]
    return shapes[0] == shapes[1]


def _shapes_of_parameters(calls: Iterable[CallRecord]) -> Counter[tuple[int, ...]]:
    """Count the parameters that a run uses by their shapes, as often as they are used."""
    found: Counter[tuple[int, ...]] = Counter()
    for call in calls:
        places = () if call.name.startswith("Module.") else _places(call)
        for leaf in call.leaves():
            place = ".".join((leaf.section, *leaf.path))
            if isinstance(leaf.value, TensorValue) and (
                place in places or place.startswith("parameters.")
            ):
                found[leaf.value.shape] += 1
    return found


def _places(call: CallRecord) -> tuple[str, ...]:
    return PARAMETER_PLACES.get(operation_of(call.name), ())
