"""What an online check has found, counted while it runs and frozen at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.online.files import place_of_call
from tensorprobe.online.judging import CheckedOperator, JudgedOutput

__all__ = ["Failure", "OnlineReport", "Tally", "failure_of"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that computed something else than the CPU, by our rule or, where asked, the older one.

    Attributes:
        name: the operator and the number of its call, as its files are named: `mm_3`.
        operator: the operator with its overload: `aten.mm.default`.
        call: which of the operator's calls it is, from 1.
        order: which of all calls it is.
        step: in which step.
        direction: forward or backward.
        place: where the user's code made it, or made what it is the backward of.
        numbers: what is wrong, in words.
    """

    name: str
    operator: str
    call: int
    order: int
    step: int
    direction: str
    place: str
    numbers: str


@dataclass(frozen=True, slots=True)
class OnlineReport:
    """What an online check has found.

    Attributes:
        seen: how many calls of operators were seen.
        checked: how many of them were judged.
        failed: how many of those are wrong.
        explained: how many miss the older rule where rounding explains it.
        skipped: how many were not judged, by reason.
        left_out: how many were not to be checked: by `every`, `steps`, `include` and the like.
        failures: the wrong ones in the order in which they ran; of very many the first.
        folder: where the files are.
        table: the table with a row for each output.
        kept_bytes: how many bytes of data were kept.
        notes: what a reader has to know beside.
    """

    seen: int
    checked: int
    failed: int
    explained: int
    skipped: Mapping[str, int]
    left_out: int
    failures: tuple[Failure, ...]
    folder: Path
    table: Path
    kept_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def first_failure(self) -> Failure | None:
        """The first call that is wrong, in the order in which they ran."""
        return self.failures[0] if self.failures else None


_MOST_FAILURES = 10_000
_MOST_REASONS = 20
_OTHER_REASONS = "for other reasons"


@dataclass(slots=True)
class Tally:
    """Counts what a check finds."""

    seen: int = 0
    checked: int = 0
    failed: int = 0
    explained: int = 0
    left_out: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    # Which operators were skipped for a reason, a few of each.
    examples: dict[str, set[str]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        """Count a call that is not judged."""
        if reason not in self.skipped and len(self.skipped) >= _MOST_REASONS:
            # An operator may refuse each call in other words.
            reason = _OTHER_REASONS
        self.skipped[reason] += 1
        self.examples.setdefault(reason, set()).add(name)

    def add(self, checked: CheckedOperator) -> Failure | None:
        """Count a call that was looked at; returns what to tell of it if it is wrong."""
        if checked.verdict == "SKIP":
            self.skip(checked.call.facts.name, checked.message or _reason_of(checked))
            return None
        self.checked += 1
        if not checked.has_failed:
            self.explained += checked.misses
            return None
        self.failed += 1
        failure = failure_of(checked)
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(failure)
        return failure


def failure_of(checked: CheckedOperator) -> Failure:
    """Say what is wrong with a call; or what misses the older rule, if nothing is wrong."""
    call = checked.call
    words = []
    for output in checked.outputs:
        if output.has_failed or (output.is_explained and not checked.has_failed):
            cosine, error = output.measured.cells[0], output.measured.cells[2]
            numbers = f"cosine {_short(cosine)}, largest error {_short(error)}"
            words.append(f"{output.place}: {numbers}; {_why(output)}")
    return Failure(
        call.name,
        call.facts.operator,
        call.number,
        call.order,
        call.step,
        "backward" if call.is_backward else "forward",
        place_of_call(call.stack),
        "; ".join(words) or checked.message,
    )


def _why(output: JudgedOutput) -> str:
    if output.has_failed:
        return output.judgement.message
    return "by the older rule alone: rounding explains it"


def _short(cell: object) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _reason_of(checked: CheckedOperator) -> str:
    reasons = [output.judgement.message for output in checked.outputs if output.judgement.message]
    return reasons[0] if reasons else "nothing of it can be compared"
