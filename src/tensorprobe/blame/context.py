"""What is known of one rank of two runs before anybody is suspected.

    pair_calls ─► Meter: distances of every tensor ─► Walk: what distances show in order of the run
                                                  ├─► what differs before anything ran
                                                  └─► replays (where there are data) ─► suspicions

Rules look at this and at nothing else, and none of them changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import Meter
from tensorprobe.blame.call_split import CallSplit
from tensorprobe.blame.changed_arguments import find_changed_arguments
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.links import Links, follow_tensors
from tensorprobe.blame.lone_calls import Consequences, find_consequences
from tensorprobe.blame.recorded_run import RecordedRun, open_runs
from tensorprobe.blame.replays import Replays
from tensorprobe.blame.same_model import Mismatch, find_mismatch
from tensorprobe.blame.select import ReplayPlan, plan_doubts, plan_replays
from tensorprobe.blame.start import StartDifferences, find_start_differences
from tensorprobe.blame.suspicion import Suspicion, find_suspicions, working_index
from tensorprobe.blame.type_change import TypeChange, find_type_change
from tensorprobe.blame.walk import Walk
from tensorprobe.compare.measure import DataDistance
from tensorprobe.dtypes import TF32_ROUNDOFF
from tensorprobe.pairing.call_pairs import CallPair, kinds_of_both, pair_calls
from tensorprobe.rounding.distance import CallAgreement
from tensorprobe.rounding.explain import Unexplained
from tensorprobe.store import RankDump

__all__ = ["Context", "read_context"]

_ALL = Effort()


@dataclass(frozen=True, slots=True)
class Context:
    """What the calls of one rank show.

    Attributes:
        candidate: the run under test.
        reference: the trusted run.
        pairs: every call in the order of the run.
        agreements: the distances of their tensors, by the candidate's names.
        links: where tensors of the trusted run come from.
        walk: what the distances show in the order of the run.
        start: what differs before anything ran.
        replays: what was replayed, and what can be.
        suspicions: the errors that replays show, by call.
        raised: families of operations that work in fewer bits in the whole run.
        kinds: which kinds of calls both runs recorded: modules (True), others (False).
        consequences: where calls that only one run makes matter.
        effort: how much may be done.
        left_out: how many calls were not looked at.
        types: which results are of other floating-point types; None if none is.
        mismatch: how little the runs have in common, if they are not of one model.
    """

    candidate: RecordedRun
    reference: RecordedRun
    pairs: Sequence[CallPair]
    agreements: Mapping[str, CallAgreement]
    links: Links
    walk: Walk
    start: StartDifferences
    replays: Replays
    suspicions: Mapping[str, Suspicion]
    raised: Mapping[tuple[str, str], int]
    kinds: frozenset[bool]
    consequences: Consequences
    effort: Effort
    left_out: int
    types: TypeChange | None
    mismatch: Mismatch | None

    @property
    def splits(self) -> Mapping[str, CallSplit]:
        """What replays show, by call."""
        return self.replays.splits

    @property
    def unreplayed(self) -> Mapping[str, str]:
        """Why other calls were not replayed, by name."""
        return self.replays.failures

    @property
    def typical_distance(self) -> float:
        """The distance that results usually have."""
        return self.walk.typical_distance

    @property
    def work(self) -> float:
        """The roundoff that matrix products of this run work in, 0 for their own."""
        return (
            TF32_ROUNDOFF if ("matrix products", "torch.float32") in self.raised else self.walk.work
        )

    @property
    def basis(self) -> str:
        """What the dumps hold: data, statistics, checksums or nothing."""
        bases = {
            distance.basis
            for agreement in self.agreements.values()
            for distance in (*agreement.inputs, *agreement.outputs)
        }
        found = (basis for basis in ("data", "statistics", "checksum") if basis in bases)
        basis = next(found, "nothing")
        return "checksums" if basis == "checksum" else basis

    @property
    def has_calls_of_functions(self) -> bool:
        """Whether calls of functions were recorded, and not modules alone."""
        return self.candidate.part.info.level not in ("L0", None)

    @property
    def has_checksums(self) -> bool:
        """Whether both runs have checksums of what they recorded."""
        return any(
            distance.candidate.checksum is not None and distance.reference.checksum is not None
            for agreement in self.agreements.values()
            for distance in agreement.outputs
        )

    @property
    def works_otherwise(self) -> bool:
        """Whether the candidate computes in other types than the reference."""
        return self.types is not None and self.types.is_general

    def unexplained(self, pair: CallPair) -> Unexplained | None:
        """Return the result of a call that its inputs and rounding do not explain, or None."""
        found = self.walk.unexplained.get(pair.name)
        if found is None or self.work == self.walk.work:
            return found
        return self.walk.explain(pair, self.agreements, self.work)

    def victims(self, position: int) -> int:
        """Return how many calls behind a position have results that differ."""
        return sum(
            any(distance.value != 0 for distance in self.agreements[pair.name].outputs)
            for pair in self.pairs
            if pair.position > position and pair.candidate is not None
        )


def read_context(
    candidate: RankDump,
    reference: RankDump,
    *,
    known: Mapping[tuple[str, str], DataDistance] | None = None,
    first: str | None = None,
    typical_in_step_before: float = 0.0,
    effort: Effort = _ALL,
) -> Context:
    """Measure one rank of two runs, and replay what the distances leave in doubt.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        known: distances that have been measured already.
        first: the first call of which something differs, where that is known.
        typical_in_step_before: the distance that is usual in the step before.
        effort: how much may be done.
    """
    ours, theirs, left_out = open_runs(candidate, reference, most=effort.calls, first=first)
    pairs = pair_calls(ours, theirs)
    agreements = Meter(ours, theirs, known).measure_calls(pairs)
    links = follow_tensors(theirs.calls.values())
    walk = Walk(pairs, agreements)
    start = find_start_differences(
        pairs,
        agreements,
        links,
        walk.typical_before,
        typical_in_step_before,
        walk.unexplained.keys(),
    )
    replays = Replays(ours, theirs, effort)
    replays.run(_plan_replays(pairs, agreements, walk, start, effort), last=len(pairs))
    splits = list(replays.splits.values())
    return Context(
        candidate=ours,
        reference=theirs,
        pairs=pairs,
        agreements=agreements,
        links=links,
        walk=walk,
        start=start,
        replays=replays,
        suspicions={found.call: found for found in find_suspicions(splits)},
        raised={key: index for key, index in working_index(splits).items() if index},
        kinds=frozenset(kinds_of_both(pairs)),
        consequences=find_consequences(pairs, agreements, links, walk.typical_at, walk.work),
        effort=effort,
        left_out=left_out,
        types=find_type_change(pairs, agreements),
        mismatch=find_mismatch(pairs),
    )


def _plan_replays(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    walk: Walk,
    start: StartDifferences,
    effort: Effort,
) -> ReplayPlan:
    settled = _settled_position(pairs, walk, start)
    if not effort.settles_doubts:
        return plan_replays(pairs, agreements, walk.unexplained, settled)
    if start.kind in ("data", "weights"):
        return ReplayPlan((), True)
    return plan_doubts(pairs, agreements, walk.unexplained, settled)


def _settled_position(pairs: Sequence[CallPair], walk: Walk, start: StartDifferences) -> int | None:
    """Return the position of the first suspect that stands without a replay."""
    states = {use.call for use, _ in start.places} if start.kind == "state" else set()
    for pair in pairs:
        if pair.name in states:
            return pair.position
        if pair.phase == "forward" and pair.name in walk.unexplained:
            mine, other = pair.candidate, pair.reference
            if mine is not None and other is not None and find_changed_arguments(mine, other):
                return pair.position
    return None
