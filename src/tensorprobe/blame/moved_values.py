"""Find who put values into other places, which no statistic of them shows.

Statistics are the same in any order. What shows is the first sum with something else: its mean is
that of its terms, wherever their values stand, but its largest and its norm are not. An addition
whose terms agree, and whose mean does, too, is not wrong: one of its terms is.

    sum ─► terms ─► back through views, copies and factors ─► a call that picks or moves values
                                                          └─► else who made the only new term
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorprobe.blame.agreement import CallAgreement, StatisticsKey, is_float, statistics_key
from tensorprobe.blame.explain import Unexplained, resolutions
from tensorprobe.blame.links import Links
from tensorprobe.blame.operations import ADDING, EXACT, MOVING, SCALING, operation_of
from tensorprobe.blame.order import CallPair
from tensorprobe.blame.sides import Side
from tensorprobe.records import CallRecord, TensorValue

__all__ = ["find_mover"]

# The mean holds if it moves by no more than this many times what noise may move it; the largest and
# the norm do not if they move by that many times more.
_HOLDS = 4.0
_MOVES = 50.0
_LONGEST_CHAIN = 12
# They hand on what they are given, at the same places.
_PASSING = (EXACT | SCALING | ADDING) - MOVING


def find_mover(
    pair: CallPair,
    found: Unexplained,
    agreement: CallAgreement,
    links: Links,
    reference: Side,
    pairs: Mapping[str, CallPair],
) -> CallPair | None:
    """Return the call that put values into other places, if that is what a wrong sum shows.

    Args:
        pair: the call whose result its inputs do not explain.
        found: that result.
        agreement: the distances of its tensors.
        links: where tensors of the trusted run come from.
        reference: the trusted run.
        pairs: all calls by the trusted run's names.
    """
    if not _is_sum_of_moved(pair, found, agreement) or pair.reference is None:
        return None
    terms = [
        leaf.value
        for leaf in pair.reference.leaves()
        if leaf.section == "input" and isinstance(leaf.value, TensorValue) and is_float(leaf.value)
    ]
    movers: list[CallPair] = []
    makers: list[CallPair] = []
    for term in terms:
        chain = _chain(term, pair, links, reference, pairs)
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
    noise = _HOLDS * (resolutions(output)[0] + moved)
    return output.averages[0] <= noise and output.value > _MOVES * noise


def _chain(
    term: TensorValue,
    user: CallPair,
    links: Links,
    reference: Side,
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
