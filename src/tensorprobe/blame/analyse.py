"""Walk one rank's calls in the order of the run and collect everything that no input explains.

    pair_calls ─► Meter: distances of every tensor ─► start differences
                                                  ├─► replay (where there are data) ─► suspicions
                                                  └─► explain (the others)          ─► suspects

The first suspect is the culprit; what comes after it and differs is a victim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprobe.blame.agreement import CallAgreement, Meter
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.evidence import CallSplit, OutputSplit
from tensorprobe.blame.explain import Unexplained
from tensorprobe.blame.links import Links, follow_tensors
from tensorprobe.blame.lone_calls import LoneCall, find_consequences, find_follower
from tensorprobe.blame.moved_values import find_mover
from tensorprobe.blame.operations import RANDOM, operation_of
from tensorprobe.blame.order import CallPair, Phase, kinds_of_both, open_sides, pair_calls
from tensorprobe.blame.own_backward import OwnBackward, find_own_backward
from tensorprobe.blame.passed_on import is_fed_unseen, is_handed_on, without_handed_on
from tensorprobe.blame.replays import Replays
from tensorprobe.blame.same_model import Mismatch, find_mismatch
from tensorprobe.blame.select import ReplayPlan, plan_doubts, plan_replays
from tensorprobe.blame.sides import Side
from tensorprobe.blame.start import StartDifferences, find_start_differences, may_be_made
from tensorprobe.blame.suspicion import Suspicion, find_suspicions, working_index
from tensorprobe.blame.type_change import TypeChange, find_type_change
from tensorprobe.blame.walk import TF32, Walk
from tensorprobe.compare.measure import DataDistance
from tensorprobe.records import CallRecord, ScalarValue, TensorValue, Value
from tensorprobe.store import RankDump

__all__ = ["ArgumentChange", "RankAnalysis", "Suspect", "analyse_rank"]

_NOT_GIVEN = ScalarValue("str", "not given")

Basis = Literal["replay", "inputs", "arguments", "state", "sequence", "gap"]

_ALL = Effort()


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """An argument that is no tensor and differs: its place and both values, in words."""

    place: str
    candidate: str
    reference: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A call at which something came up that its inputs do not explain.

    Attributes:
        call: its name in the candidate, or in the reference where only that has it.
        position: its place in the order of the run.
        phase: forward or backward.
        place: the value that shows it, `output.0`.
        basis: replay, inputs (they agree, the results do not), arguments, state (an input from
            outside), sequence (only one run has it) or gap (its own result was not recorded).
        times: how many times the error is above its floor.
        split: the replay's numbers.
        unexplained: the distances, where there was no replay.
        measure: which yardstick of the replay tells.
        working: the index of the roundoff that the run works in.
        changes: the arguments that differ.
        own: the calls that one run alone makes for this gradient, where it is one of those.
        lone: what a call that only one run makes leads to.
        seen_at: the sum that shows that this call's values stand in other places.
    """

    call: str
    position: int
    phase: Phase
    place: str
    basis: Basis
    times: float
    split: OutputSplit | None = None
    unexplained: Unexplained | None = None
    measure: str = ""
    working: int = 0
    changes: tuple[ArgumentChange, ...] = ()
    own: OwnBackward | None = None
    lone: LoneCall | None = None
    seen_at: str = ""


@dataclass(frozen=True, slots=True)
class RankAnalysis:
    """What the calls of one rank show.

    Attributes:
        candidate: the run under test.
        reference: the trusted run.
        pairs: every call in the order of the run.
        agreements: the distances of their tensors, by the candidate's names.
        suspects: in the order of the run.
        start: what differs before anything ran.
        splits: what was replayed.
        unreplayed: why other calls were not, by name.
        basis: data, statistics, checksums or nothing.
        background: the distance that results usually have.
        raised: families of operations that work in fewer bits in the whole run.
        left_out: how many calls were not looked at.
        is_cut_short: whether the time ended before everything was replayed that leaves a doubt.
        is_quick: whether only doubts were to be replayed.
        types: which results are of other floating-point types; None if none is.
        mismatch: how little the runs have in common, if they are not of one model.
    """

    candidate: Side
    reference: Side
    pairs: Sequence[CallPair]
    agreements: Mapping[str, CallAgreement]
    suspects: tuple[Suspect, ...]
    start: StartDifferences
    splits: Mapping[str, CallSplit]
    unreplayed: Mapping[str, str]
    basis: str
    background: float
    raised: Mapping[tuple[str, str], int]
    left_out: int = 0
    is_cut_short: bool = False
    is_quick: bool = False
    types: TypeChange | None = None
    mismatch: Mismatch | None = None

    @property
    def has_checksums(self) -> bool:
        """Whether both runs have checksums of what they recorded."""
        return any(
            distance.candidate.checksum is not None and distance.reference.checksum is not None
            for agreement in self.agreements.values()
            for distance in agreement.outputs
        )

    def victims(self, position: int) -> int:
        """Return how many calls behind a position have results that differ."""
        return sum(
            any(distance.value != 0 for distance in self.agreements[pair.name].outputs)
            for pair in self.pairs
            if pair.position > position and pair.candidate is not None
        )


def analyse_rank(
    candidate: RankDump,
    reference: RankDump,
    *,
    known: Mapping[tuple[str, str], DataDistance] | None = None,
    first: str | None = None,
    carried: float = 0.0,
    effort: Effort = _ALL,
) -> RankAnalysis:
    """Compare one rank of two runs and find where errors come up.

    Args:
        candidate: the run under test.
        reference: the trusted run.
        known: distances that have been measured already.
        first: the first call of which something differs, where that is known.
        carried: the distance that is usual in the step before.
        effort: how much may be done.
    """
    ours, theirs, left_out = open_sides(candidate, reference, most=effort.calls, first=first)
    pairs = pair_calls(ours, theirs)
    agreements = Meter(ours, theirs, known).measure_calls(pairs)
    links = follow_tensors(theirs.calls.values())
    walk = Walk(pairs, agreements)
    start = find_start_differences(
        pairs, agreements, links, walk.before, carried, walk.unexplained.keys()
    )
    replays = Replays(ours, theirs, effort)
    replays.run(_plan(pairs, agreements, walk, start, effort), last=len(pairs))
    splits = replays.splits
    suspicions = {found.call: found for found in find_suspicions(list(splits.values()))}
    raised = {key: index for key, index in working_index(splits.values()).items() if index}
    work = TF32 if ("matrix products", "torch.float32") in raised else walk.work
    suspects = _collect(pairs, agreements, links, walk, splits, suspicions, start, work)
    suspects = _name_gradients(suspects, pairs, ours, theirs)
    suspects = _name_movers(suspects, pairs, agreements, links, theirs)
    if _may_have_gap(suspects, effort):
        gap = _find_gap(pairs, agreements, links, ours, theirs, replays, walk, suspects, work)
        if gap is not None:
            suspects = sorted([*suspects, gap], key=lambda suspect: suspect.position)
    return RankAnalysis(
        ours,
        theirs,
        pairs,
        agreements,
        tuple(suspects),
        without_handed_on(start, {suspect.call for suspect in suspects}),
        splits,
        replays.failures,
        _basis(agreements),
        walk.usual,
        raised,
        left_out,
        replays.is_cut_short,
        effort.settles_doubts,
        find_type_change(pairs, agreements),
        find_mismatch(pairs),
    )


def _may_have_gap(suspects: Sequence[Suspect], effort: Effort) -> bool:
    """Whether to look for what was not recorded: every suspect is a gradient, and there is time."""
    if effort.settles_doubts and suspects:
        return False
    return not any(suspect.phase == "forward" for suspect in suspects)


def _plan(
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
            if mine is not None and other is not None and _changed_arguments(mine, other):
                return pair.position
    return None


def _collect(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    walk: Walk,
    splits: Mapping[str, CallSplit],
    suspicions: Mapping[str, Suspicion],
    start: StartDifferences,
    work: float,
) -> list[Suspect]:
    """Return the suspects in the order of the run."""
    states = {use.call: distance for use, distance in start.places} if start.kind == "state" else {}
    found: list[Suspect] = []
    kinds = kinds_of_both(pairs)
    consequences = find_consequences(pairs, agreements, links, walk.before_place, walk.work)
    for pair in pairs:
        where = (pair.name, pair.position, pair.phase)
        if pair.candidate is None or pair.reference is None:
            is_told = consequences != "none" and pair.name.startswith("Module.") in kinds
            if not is_told or pair.phase == "backward":
                continue
            usual = walk.before_place[pair.position]
            follower = find_follower(pair, pairs, agreements, usual, walk.unexplained.keys())
            if follower is not None:
                lone = LoneCall(follower, consequences)
                found.append(Suspect(*where, "", "sequence", math.inf, lone=lone))
            continue
        unexplained = walk.unexplained.get(pair.name)
        if unexplained is not None and work != walk.work:
            unexplained = walk.explain(pair, agreements, work)
        changes = _changed_arguments(pair.candidate, pair.reference)
        split = splits.get(pair.name)
        suspicion = suspicions.get(pair.name)
        has_forward = any(suspect.phase == "forward" for suspect in found)
        if changes and unexplained is not None and pair.phase == "forward":
            found.append(
                Suspect(
                    *where,
                    unexplained.output.place,
                    "arguments",
                    unexplained.times,
                    unexplained=unexplained,
                    changes=changes,
                )
            )
        elif pair.name in states and not (
            has_forward
            and (
                is_handed_on(pair.name, states[pair.name].place)
                or may_be_made(pair, states[pair.name])
            )
        ):
            distance = states[pair.name]
            found.append(Suspect(*where, distance.place, "state", math.inf))
        elif suspicion is not None:
            found.append(
                Suspect(
                    *where,
                    suspicion.output.place,
                    "replay",
                    suspicion.times,
                    split=suspicion.output,
                    unexplained=unexplained,
                    measure=suspicion.measure,
                    working=suspicion.working,
                )
            )
        elif (
            unexplained is not None
            and not _is_cleared(split, unexplained)
            and not (found and is_fed_unseen(pair.name))
        ):
            found.append(
                Suspect(
                    *where,
                    unexplained.output.place,
                    "inputs",
                    unexplained.times,
                    unexplained=unexplained,
                    split=_random_split(pair, split, unexplained),
                )
            )
    return found


def _is_cleared(split: CallSplit | None, unexplained: Unexplained) -> bool:
    """Whether a replay has shown that a result is what its inputs give."""
    if split is None:
        return False
    if operation_of(split.name) in RANDOM:
        # The replay takes over what was dropped; that the runs drop other elements shows outside.
        return unexplained.inherited > 0
    return any(output.place == unexplained.output.place for output in split.outputs)


def _random_split(
    pair: CallPair, split: CallSplit | None, unexplained: Unexplained
) -> OutputSplit | None:
    if split is None or operation_of(pair.name) not in RANDOM:
        return None
    return next((o for o in split.outputs if o.place == unexplained.output.place), None)


def _changed_arguments(mine: CallRecord, other: CallRecord) -> tuple[ArgumentChange, ...]:
    """Return the numbers, texts and flags among the arguments that differ."""
    ours, theirs = (
        {
            (leaf.section, *leaf.path): leaf.value
            for leaf in call.leaves()
            if leaf.section != "output"
        }
        for call in (mine, other)
    )
    found = []
    for place in dict.fromkeys((*ours, *theirs)):
        if place[0] != "kwargs" and not (place in ours and place in theirs):
            continue
        values = (ours.get(place, _NOT_GIVEN), theirs.get(place, _NOT_GIVEN))
        if any(isinstance(item, TensorValue) for item in values) or _are_alike(*values):
            continue
        if not any(isinstance(item, ScalarValue) and item is not _NOT_GIVEN for item in values):
            continue
        shown = [str(item.value) if isinstance(item, ScalarValue) else str(item) for item in values]
        found.append(ArgumentChange(".".join(place), *shown))
    return tuple(found)


def _are_alike(mine: Value, other: Value) -> bool:
    """Whether two arguments are the same; NaN is what NaN is."""
    if mine == other:
        return True
    if not (isinstance(mine, ScalarValue) and isinstance(other, ScalarValue)):
        return False
    return mine.value != mine.value and other.value != other.value


def _name_gradients(
    suspects: Sequence[Suspect], pairs: Sequence[CallPair], ours: Side, theirs: Side
) -> list[Suspect]:
    """Put the gradient in place of the calls that one run alone makes to compute it."""
    found: dict[tuple[int, str], Suspect] = {}
    for suspect in suspects:
        own = None
        if suspect.basis == "sequence":
            own = find_own_backward(pairs[suspect.position], pairs, ours, theirs)
        if own is not None:
            suspect = Suspect(
                own.call, own.position, "backward", own.place, "sequence", math.inf, own=own
            )
        found.setdefault((suspect.position, suspect.call), suspect)
    return sorted(found.values(), key=lambda suspect: suspect.position)


def _name_movers(
    suspects: Sequence[Suspect],
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    reference: Side,
) -> list[Suspect]:
    """Put who moved values in place of the first sum that shows it."""
    first = suspects[0] if suspects else None
    if first is None or first.basis != "inputs" or first.unexplained is None:
        return list(suspects)
    by_name = {pair.reference.name: pair for pair in pairs if pair.reference is not None}
    sum_of = pairs[first.position]
    mover = find_mover(sum_of, first.unexplained, agreements[first.call], links, reference, by_name)
    if mover is None or mover.candidate is None:
        return list(suspects)
    where = (mover.name, mover.position, mover.phase)
    moved = Suspect(*where, "output.0", "inputs", first.times, unexplained=first.unexplained,
                    seen_at=f"{first.call}.{first.place}")  # fmt: skip
    return [moved, *suspects[1:]]


def _find_gap(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    ours: Side,
    theirs: Side,
    replays: Replays,
    walk: Walk,
    suspects: Sequence[Suspect],
    work: float,
) -> Suspect | None:
    if any(p.candidate is None or p.reference is None for p in pairs if p.phase == "forward"):
        # Tensors are followed in both runs by the calls that use them, which must be the same.
        return None
    from tensorprobe.blame.gaps import find_gap_suspect

    until = min((suspect.position for suspect in suspects), default=len(pairs))
    gap = find_gap_suspect(
        pairs[:until], agreements, links, ours, theirs, replays, walk.before, walk.hidden, work
    )
    if gap is None:
        return None
    return Suspect(gap.call, gap.position, "backward", gap.place, "gap", gap.times)


def _basis(agreements: Mapping[str, CallAgreement]) -> str:
    bases = {
        distance.basis
        for agreement in agreements.values()
        for distance in (*agreement.inputs, *agreement.outputs)
    }
    for basis in ("data", "statistics", "checksum"):
        if basis in bases:
            return "checksums" if basis == "checksum" else basis
    return "nothing"
