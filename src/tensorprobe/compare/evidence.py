"""What a comparison hands on to whoever names the operation at fault, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tensorprobe.compare.measure import DataDistance
from tensorprobe.operations.calls import meaningless_as
from tensorprobe.pairing.match import MatchedCall, Pair
from tensorprobe.store import RankDump

__all__ = ["Answer", "AskWho", "PartEvidence", "look_at"]


class PartEvidence(NamedTuple):
    """One rank of both runs after its comparison.

    Attributes:
        candidate: the run under test, opened.
        reference: the trusted run, opened.
        first_unlike: the candidate's first call of which any bit that was recorded differs and
            means something, or that has no partner; None where there is none.
        distances: how far the data are apart, by the names of both files.
        is_located: whether `first_unlike` itself differs, or only something does that the candidate
            lacks.
        meaningless: how many values before it differ and mean nothing: memory as it was found, or
            what is overwritten without being read.
    """

    candidate: RankDump
    reference: RankDump
    first_unlike: str | None
    distances: Mapping[tuple[str, str], DataDistance]
    is_located: bool = True
    meaningless: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Who is at fault.

    Attributes:
        lines: what the terminal says first.
        is_settled: whether they say what is wrong, so that nothing else need be advised.
        culprit: the call at fault, or None.
        part: the place of its rank among those that were asked about.
        details: what `diff_analyze` says of it.
        start: the call that is given the first value that differs from the start, or None.
        advice: what is wrong and what to do about it, in a sentence; empty if nobody knows.
        is_missing: whether only the reference makes the call at fault.
    """

    lines: tuple[str, ...]
    is_settled: bool = False
    culprit: str | None = None
    part: int = 0
    details: Mapping[str, Any] | None = None
    start: str | None = None
    advice: str = ""
    is_missing: bool = False


class AskWho(Protocol):
    """Says who is at fault."""

    def prepare(self) -> None:
        """Get ready: this is called in a thread of its own while files are measured."""
        ...

    def __call__(
        self, parts: Sequence[PartEvidence], seconds: float, missing: Sequence[str] = (), /
    ) -> Answer:
        """Return the answer for all ranks, whose comparison took so many seconds of computing.

        What is missing are the ranks that were not compared, a sentence each.
        """
        ...


def look_at(
    call: MatchedCall, distances: Mapping[tuple[str, str], DataDistance]
) -> tuple[bool, int]:
    """Say whether anything of a call differs, in any bit that was recorded.

    Returns:
        Whether a value differs that means something, and how many before it do that mean nothing.
    """
    meaningless = 0
    for pair in call.pairs:
        if _differs(pair, distances):
            if pair.reference is None or meaningless_as(call.name, pair.candidate.place) is None:
                return True, meaningless
            meaningless += 1
    return False, meaningless


def _differs(pair: Pair, distances: Mapping[tuple[str, str], DataDistance]) -> bool:
    ours, theirs = pair.candidate, pair.reference
    if theirs is None or ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return True
    if ours.data_name is not None and theirs.data_name is not None:
        distance = distances.get((ours.data_name, theirs.data_name))
        return distance is None or distance.unequal != 0
    if ours.checksum is not None and theirs.checksum is not None:
        return ours.checksum != theirs.checksum
    return ours[4:8] != theirs[4:8]
