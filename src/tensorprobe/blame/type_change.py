"""Find out whether the two runs compute in other types: one under autocast, or cast as a whole.

Then they differ from the start, by the rounding of the shorter type, and no operation is at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, Distance, is_float

__all__ = ["TypeChange", "find_type_change"]


@dataclass(frozen=True, slots=True)
class TypeChange:
    """Results of the candidate that are of another floating-point type than the reference's.

    Attributes:
        candidate: the type of most of them, `torch.bfloat16`.
        reference: the type that these have in the reference.
        calls: how many forward calls give them.
        compared: of how many forward calls that give floating-point numbers.
        call: the first of them.
        place: its result.
        is_general: whether that is how the run works, and not a matter of single calls.
    """

    candidate: str
    reference: str
    calls: int
    compared: int
    call: str
    place: str
    is_general: bool

    def __str__(self) -> str:
        ours, theirs = (name.removeprefix("torch.") for name in (self.candidate, self.reference))
        return (
            f"the candidate computes in {ours} where the reference computes in {theirs}: "
            f"{self.calls} of {self.compared} forward calls, first {self.call}.{self.place}"
        )


def find_type_change(
    pairs: Sequence[CallPair], agreements: Mapping[str, CallAgreement]
) -> TypeChange | None:
    """Return which results on the way up have another floating-point type; None if none has."""
    compared = 0
    found: list[tuple[str, Distance]] = []
    for pair in pairs:
        if pair.phase == "backward":
            # What an optimizer does behind that is in types of its own.
            break
        if pair.candidate is None or pair.reference is None:
            continue
        results = [
            distance
            for distance in agreements[pair.name].outputs
            if is_float(distance.candidate) and is_float(distance.reference)
        ]
        compared += bool(results)
        changed = next((d for d in results if d.candidate.dtype != d.reference.dtype), None)
        if changed is not None:
            found.append((pair.name, changed))
    if not found:
        return None
    kinds = Counter((d.candidate.dtype, d.reference.dtype) for _, d in found)
    (ours, theirs), count = kinds.most_common(1)[0]
    call, first = next(
        (call, d) for call, d in found if (d.candidate.dtype, d.reference.dtype) == (ours, theirs)
    )
    is_general = count >= tolerances.TYPE_CALLS and count >= tolerances.TYPE_SHARE * compared
    return TypeChange(ours, theirs, count, compared, call, first.place, is_general)
