"""Find who put values into other places, which no statistic of them shows.

Statistics are the same in any order. What shows is the first sum with something else: its mean is
that of its terms, wherever their values stand, but its largest and its norm are not. An addition
whose terms agree, and whose mean does, too, is not wrong: one of its terms is.

    sum ─► terms ─► back through views, copies and factors ─► a call that picks or moves values
                                                          └─► else who made the only new term
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorprobe.blame.agreement import StatisticsKey, statistics_key
from tensorprobe.blame.causes import Cause
from tensorprobe.blame.context import Context
from tensorprobe.blame.links import Links
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.rules.evidence import CallInContext
from tensorprobe.blame.rules.unexplained_result import UnexplainedResult, is_cleared
from tensorprobe.operations.facts import ADDING, EXACT, MOVING, SCALING
from tensorprobe.operations.spelling import operation_of
from tensorprobe.pairing.call_pairs import CallPair
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.distance import CallAgreement, is_float
from tensorprobe.rounding.explain import Unexplained
from tensorprobe.rounding.recorded import resolutions

__all__ = ["MovedValues", "find_moved_values"]

_LONGEST_CHAIN = 12
# They hand on what they are given, at the same places.
_PASSING = (EXACT | SCALING | ADDING) - MOVING


def find_moved_values(call: CallInContext) -> MovedValues | None:
    """Suspect who put values into other places, if that is what the first wrong sum shows."""
    unexplained = call.unexplained
    if call.found or unexplained is None or is_cleared(call, unexplained):
        return None
    mover = _find_mover(call, unexplained)
    if mover is None or mover.candidate is None:
        return None
    return MovedValues(
        call=mover.name,
        position=mover.position,
        phase=mover.phase,
        value_path="output.0",
        times=unexplained.times,
        unexplained=unexplained,
        replayed=None,
        is_exact=mover.is_exact,
        seen_at=f"{call.pair.name}.{unexplained.output.place}",
    )


@dataclass(frozen=True, slots=True)
class MovedValues(UnexplainedResult):
    """A call whose values stand in other places.

    Attributes:
        seen_at: the sum that shows it.
    """

    seen_at: str

    def read_cause(self, context: Context) -> Cause:
        """Return what kind of fault it looks like."""
        return Cause(
            "indices",
            f"its values stand in other places: their statistics agree, and so does the mean of "
            f"{self.seen_at}, to which they are added, but not its largest or its norm",
            "capture this call with task tensor on both sides: a replay can prove it",
        )


def _find_mover(call: CallInContext, found: Unexplained) -> CallPair | None:
    """Return the call that put values into other places, if that is what a wrong sum shows."""
    context, pair = call.context, call.pair
    agreement = context.agreements[pair.name]
    if not _is_sum_of_moved(pair, found, agreement) or pair.reference is None:
        return None
    pairs = {pair.reference.name: pair for pair in context.pairs if pair.reference is not None}
    links = context.links
    terms = [
        leaf.value
        for leaf in pair.reference.leaves()
        if leaf.section == "input" and isinstance(leaf.value, TensorValue) and is_float(leaf.value)
    ]
    movers: list[CallPair] = []
    makers: list[CallPair] = []
    for term in terms:
        chain = _chain(term, pair, links, context.reference, pairs)
        movers += [link for link in chain if operation_of(link.name) in MOVING][:1]
        makers += [link for link in chain[-1:] if _is_new(term, pair, links, pairs)]
    if movers:
        return min(movers, key=lambda mover: mover.position)
    return makers[0] if len(makers) == 1 else None


def _is_sum_of_moved(pair: CallPair, found: Unexplained, agreement: CallAgreement) -> bool:
    output = found.output
    if operation_of(pair.name) not in ADDING or pair.phase != "forward" or not output.averages:
        return False
    moved = max((max(d.averages, default=0.0) for d in agreement.inputs), default=0.0)
    noise = tolerances.MEAN_HOLDS * (resolutions(output)[0] + moved)
    return output.averages[0] <= noise and output.value > tolerances.NORM_MOVES * noise


def _chain(
    term: TensorValue,
    user: CallPair,
    links: Links,
    reference: RecordedRun,
    pairs: Mapping[str, CallPair],
) -> list[CallPair]:
    """Return who made a term, from the last call back to the first that computed something."""
    found: list[CallPair] = []
    value, before = term, user.position
    while len(found) < _LONGEST_CHAIN:
        made = [p for p in _makers(value, links, pairs) if p.position < before]
        if not made:
            break
        maker = made[-1]
        found.append(maker)
        before = maker.position
        call = reference.calls[str(maker.reference and maker.reference.name)]
        given = _only_tensor(call)
        if given is None or operation_of(maker.name) not in _PASSING:
            break
        value = given
    return found


def _makers(value: TensorValue, links: Links, pairs: Mapping[str, CallPair]) -> list[CallPair]:
    key = statistics_key(value)
    names = [] if key is None else links.makers.get(key, [])
    return [pairs[name] for name in names if name in pairs]


def _only_tensor(call: CallRecord) -> TensorValue | None:
    """Return the tensor that a call only moves or scales; None where it mixes several."""
    given = [
        leaf.value
        for leaf in call.leaves()
        if leaf.section in ("input", "kwargs") and isinstance(leaf.value, TensorValue)
    ]
    floats = [value for value in given if is_float(value) and value.shape]
    return floats[0] if len(floats) == 1 else None


def _is_new(term: TensorValue, user: CallPair, links: Links, pairs: Mapping[str, CallPair]) -> bool:
    """Whether nothing that computes has used a term before: others would have shown it."""
    key: StatisticsKey | None = statistics_key(term)
    uses: Sequence[str] = [] if key is None else [use.call for use in links.users.get(key, [])]
    return not any(
        name in pairs and pairs[name].position < user.position and operation_of(name) not in EXACT
        for name in uses
    )
