"""Who is suspected: the rules of blame, in their order. This page is the whole algorithm.

    Context: what was measured and replayed ─► for every call, in the order of the run: the first
    rule that finds evidence ─► rules about the whole run ─► suspects

The first suspect is the culprit; what comes after it and differs is a victim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.context import Context, read_context
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.passed_on import without_handed_on
from tensorprobe.blame.rules.evidence import CallInContext, Evidence
from tensorprobe.blame.rules.lone_call import find_lone_call
from tensorprobe.blame.rules.moved_values import find_moved_values
from tensorprobe.blame.rules.other_arguments import find_other_arguments
from tensorprobe.blame.rules.other_state import find_other_state
from tensorprobe.blame.rules.own_backward import find_own_backward
from tensorprobe.blame.rules.replayed_error import find_replayed_error
from tensorprobe.blame.rules.unexplained_result import find_unexplained_result
from tensorprobe.blame.rules.unrecorded_gradient import find_unrecorded_gradient
from tensorprobe.blame.start import StartDifferences
from tensorprobe.compare.measure import DataDistance
from tensorprobe.store import RankDump

__all__ = ["LONE_CALL_RULES", "RUN_RULES", "SHARED_CALL_RULES", "RankAnalysis", "analyse_rank"]

CallRule = Callable[[CallInContext], Evidence | None]
RunRule = Callable[[Context, Sequence[Evidence]], Evidence | None]

LONE_CALL_RULES: tuple[CallRule, ...] = (
    find_own_backward,  # a gradient that one run computes with a backward of its own
    find_lone_call,  # what follows a call that one run alone makes starts from other values
)
"""Of a call that only one of the runs makes."""

SHARED_CALL_RULES: tuple[CallRule, ...] = (
    find_other_arguments,  # it is told to compute something else
    find_other_state,  # a parameter or buffer that comes from outside differs
    find_replayed_error,  # a replay with its own inputs gives another result
    find_moved_values,  # a sum shows that values stand in other places
    find_unexplained_result,  # inputs and rounding do not explain how far its result is off
)
"""Of a call that both runs make: what is proved of it comes before what is guessed."""

RUN_RULES: tuple[RunRule, ...] = (
    find_unrecorded_gradient,  # a gradient arrives that none of the recorded calls has sent
)
"""Of a run in which every call was judged."""


@dataclass(frozen=True, slots=True)
class RankAnalysis:
    """What the rules find in the calls of one rank.

    Attributes:
        context: what was measured and replayed.
        suspects: the evidence, in the order of the run.
        start: what differs before anything ran, without what a suspect explains.
    """

    context: Context
    suspects: tuple[Evidence, ...]
    start: StartDifferences


def analyse_rank(
    candidate: RankDump,
    reference: RankDump,
    *,
    known: Mapping[tuple[str, str], DataDistance] | None = None,
    first: str | None = None,
    typical_in_step_before: float = 0.0,
    effort: Effort | None = None,
) -> RankAnalysis:
    """Compare one rank of two runs and find where errors come up; see `read_context`."""
    context = read_context(
        candidate,
        reference,
        known=known,
        first=first,
        typical_in_step_before=typical_in_step_before,
        effort=effort or Effort(),
    )
    suspects = find_suspects(context)
    named = {suspect.call for suspect in suspects}
    return RankAnalysis(context, tuple(suspects), without_handed_on(context.start, named))


def find_suspects(context: Context) -> list[Evidence]:
    """Return what the rules find, in the order of the run."""
    found: list[Evidence] = []
    for pair in context.pairs:
        call = CallInContext(context, pair, found)
        rules = SHARED_CALL_RULES if call.is_shared else LONE_CALL_RULES
        evidence = next((it for rule in rules if (it := rule(call)) is not None), None)
        if evidence is not None:
            found.append(evidence)
    for rule in RUN_RULES:
        of_run = rule(context, found)
        if of_run is not None:
            found.append(of_run)
    once: dict[tuple[int, str], Evidence] = {}
    for evidence in found:
        once.setdefault((evidence.position, evidence.call), evidence)
    return sorted(once.values(), key=lambda evidence: evidence.position)
