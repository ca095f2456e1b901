"""Walk one rank's calls in the order of the run and collect everything that no input explains.

    pair_calls ─► Meter: distances of every tensor ─► start differences
                                                  ├─► replay (where there are data) ─► suspicions
                                                  └─► explain (the others)          ─► suspects

The first suspect is the culprit; what comes after it and differs is a victim.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprobe.blame.agreement import CallAgreement, Distance, Meter, significant_bits
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.evidence import CallSplit, OutputSplit
from tensorprobe.blame.explain import Unexplained
from tensorprobe.blame.links import Links, follow_tensors
from tensorprobe.blame.operations import RANDOM, operation_of
from tensorprobe.blame.order import CallPair, Phase, kinds_of_both, open_sides, pair_calls
from tensorprobe.blame.own_backward import OwnBackward, find_own_backward
from tensorprobe.blame.passed_on import is_fed_unseen, is_handed_on, without_handed_on
from tensorprobe.blame.select import ReplayPlan, plan_doubts, plan_replays
from tensorprobe.blame.sides import Side
from tensorprobe.blame.start import StartDifferences, find_start_differences
from tensorprobe.blame.suspicion import Suspicion, find_suspicions, working_index
from tensorprobe.blame.type_change import TypeChange, find_type_change
from tensorprobe.blame.walk import TF32, Walk
from tensorprobe.compare.measure import DataDistance
from tensorprobe.errors import RebuildError
from tensorprobe.names import is_parameter_gradients
from tensorprobe.records import CallRecord, ScalarValue, TensorValue
from tensorprobe.store import RankDump

__all__ = ["ArgumentChange", "RankAnalysis", "Suspect", "analyse_rank"]

_NOT_GIVEN = ScalarValue("str", "not given")
# So many roundings apart the ends of two runs are the same.
_SAME_RESULT = 32
_SAME_GRADIENT = 256

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
    start = find_start_differences(pairs, agreements, links, walk.before, carried, walk.unexplained)
    replays = _Replays(ours, theirs, effort)
    replays.run(_plan(pairs, agreements, walk, start, effort), last=len(pairs))
    splits = replays.splits
    suspicions = {found.call: found for found in find_suspicions(list(splits.values()))}
    raised = {key: index for key, index in working_index(splits.values()).items() if index}
    work = TF32 if ("matrix products", "torch.float32") in raised else walk.work
    suspects = _collect(pairs, agreements, walk, splits, suspicions, start, work)
    suspects = _name_gradients(suspects, pairs, ours, theirs)
    if _may_have_gap(suspects, effort):
        gap = _find_gap(pairs, agreements, links, ours, theirs, walk, suspects, work)
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


class _Replays:
    """Replays calls and keeps what that shows.

    Attributes:
        splits: the numbers, by call.
        failures: why other calls could not be replayed.
        is_cut_short: whether the time ended before all was done.
    """

    def __init__(self, ours: Side, theirs: Side, effort: Effort) -> None:
        self.splits: dict[str, CallSplit] = {}
        self.failures: dict[str, str] = {}
        self.is_cut_short = False
        self._ours, self._theirs, self._effort = ours, theirs, effort

    def run(self, plan: ReplayPlan, *, last: int) -> None:
        """Replay the calls of a plan; of a partial one up to the first that is at fault."""
        if not plan.calls:
            return
        # Here and not above: what is answered without a replay does not wait for torch.
        from tensorprobe.blame.replay import threads_for
        from tensorprobe.blame.split import split_call

        end = self._effort.end_of_replays()
        for pair in plan.calls:
            if pair.position > last:
                continue
            if time.process_time() > end:
                self.is_cut_short = True
                break
            try:
                with threads_for(plan.costs.get(pair.name, 0.0)):
                    split = split_call(pair, self._ours, self._theirs)
            except RebuildError as err:
                self.failures[pair.name] = str(err)
            else:
                self.splits[pair.name] = split
                if split.skipped and not split.outputs:
                    self.failures[pair.name] = split.skipped[0]
                if plan.is_partial and find_suspicions([split]):
                    last = min(last, pair.position)
            self._ours.forget()
            self._theirs.forget()


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
    is_alone = any(pair.candidate is None or pair.reference is None for pair in pairs)
    has_consequences = is_alone and _has_consequences(pairs, agreements)
    for pair in pairs:
        if pair.candidate is None or pair.reference is None:
            is_told = has_consequences and pair.name.startswith("Module.") in kinds
            if is_told and (suspect := _judge_sequence(pair, pairs, agreements, walk)) is not None:
                found.append(suspect)
            continue
        unexplained = walk.unexplained.get(pair.name)
        if unexplained is not None and work != walk.work:
            unexplained = walk.explain(pair, agreements, work)
        changes = _changed_arguments(pair.candidate, pair.reference)
        split = splits.get(pair.name)
        suspicion = suspicions.get(pair.name)
        where = (pair.name, pair.position, pair.phase)
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
            has_forward and is_handed_on(pair.name, states[pair.name].place)
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
        if any(isinstance(item, TensorValue) for item in values) or values[0] == values[1]:
            continue
        if not any(isinstance(item, ScalarValue) and item is not _NOT_GIVEN for item in values):
            continue
        shown = [str(item.value) if isinstance(item, ScalarValue) else str(item) for item in values]
        found.append(ArgumentChange(".".join(place), *shown))
    return tuple(found)


def _judge_sequence(
    pair: CallPair,
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    walk: Walk,
) -> Suspect | None:
    """Suspect a call that only one run has if what follows it starts from other values."""
    if pair.phase == "backward":
        return None
    behind = (p for p in pairs[pair.position + 1 :] if p.candidate and p.reference)
    for follower in itertools.islice(behind, 5):
        for distance in agreements[follower.name].inputs:
            bits = significant_bits(distance.candidate.dtype)
            if distance.value > max(256 * 2.0**-bits, 64 * walk.before_place[pair.position]):
                return Suspect(pair.name, pair.position, pair.phase, "", "sequence", math.inf)
    return None


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


def _has_consequences(pairs: Sequence[CallPair], agreements: Mapping[str, CallAgreement]) -> bool:
    """Whether the runs end in other results; if not, they only take other ways to the same."""
    both = [pair for pair in pairs if pair.candidate is not None and pair.reference is not None]
    last = next((pair for pair in reversed(both) if pair.phase == "forward"), None)
    back = [pair for pair in both if is_parameter_gradients(pair.name)]
    back = back or [pair for pair in both if pair.phase == "backward"][-1:]
    results = [] if last is None else list(agreements[last.name].outputs)
    gradients = [distance for pair in back for distance in agreements[pair.name].outputs]
    # A gradient that should be 0 is noise and nothing else: it counts by its share of the largest.
    largest = max((_norm(distance) for distance in gradients), default=0.0)
    return any(
        not distance.value <= _SAME_RESULT * 2.0 ** -significant_bits(distance.candidate.dtype)
        for distance in results
    ) or any(
        not distance.value * _norm(distance)
        <= _SAME_GRADIENT * 2.0 ** -significant_bits(distance.candidate.dtype) * largest
        for distance in gradients
    )


def _norm(distance: Distance) -> float:
    norm = distance.reference.norm
    return float(norm) if norm is not None and math.isfinite(norm) else math.inf


def _find_gap(
    pairs: Sequence[CallPair],
    agreements: Mapping[str, CallAgreement],
    links: Links,
    ours: Side,
    theirs: Side,
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
        pairs[:until], agreements, links, ours, theirs, walk.before, walk.hidden, work
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
