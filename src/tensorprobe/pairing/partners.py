"""Find the partners of a run's calls by their names.

by name     the same name; else the same but for wrappers and for the number that older tools
            do not give to the gradients of parameters
in order    both runs' calls are aligned in the order of the run; only call numbers may differ.
            A backward call that stands elsewhere goes with its forward call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorprobe.errors import NameFormatError
from tensorprobe.names import backward_of, is_parameter_gradients, without_number
from tensorprobe.pairing.align import align_keys
from tensorprobe.pairing.run_order import forward_name, in_run_order, phase_of
from tensorprobe.pairing.wrappers import without_wrappers, wrapped_depth

__all__ = ["pair_by_name", "pair_in_order"]


def pair_by_name(candidate: Sequence[str], reference: Sequence[str]) -> dict[str, str]:
    """Return the partner of every call of the candidate that has one of its name.

    >>> pair_by_name(["Module.module.fc.Linear.forward.0"], ["Module.fc.Linear.forward.0"])
    {'Module.module.fc.Linear.forward.0': 'Module.fc.Linear.forward.0'}
    """
    theirs = frozenset(reference)
    partners = {name: name for name in candidate if name in theirs}
    if len(partners) == len(candidate) or len(partners) == len(theirs):
        return partners
    depths = wrapped_depth(candidate), wrapped_depth(reference)
    if depths[0] != depths[1]:
        # What has one name in both stands a level deeper in the one: it is another module.
        partners = {name: name for name in partners if not name.startswith("Module.")}
    taken = frozenset(partners)
    mine = _by_plain_name((name for name in candidate if name not in taken), depths[0])
    other = _by_plain_name((name for name in reference if name not in taken), depths[1])
    for plain, names in mine.items():
        # Two that look alike without their wrappers could be either.
        if len(names) == len(other.get(plain, ())) == 1:
            partners[names[0]] = other[plain][0]
    return partners


def _by_plain_name(names: Iterable[str], depth: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if name.startswith("Module."):
            plain = without_wrappers(name, depth)
            if is_parameter_gradients(plain):
                plain = plain.removesuffix(".0")
            found.setdefault(plain, []).append(name)
    return found


def pair_in_order(candidate: Iterable[str], reference: Iterable[str]) -> dict[str, str]:
    """Return the partner of every call of the candidate that has one at its place of the run.

    >>> pair_in_order(["Torch.relu.0.forward"], ["Torch.abs.0.forward", "Torch.relu.1.forward"])
    {'Torch.relu.0.forward': 'Torch.relu.1.forward'}
    """
    ours, theirs = in_run_order(candidate), in_run_order(reference)
    if ours == theirs:
        return dict(zip(ours, theirs, strict=True))
    keys = (
        [without_number(without_wrappers(name, depth)) for name in run]
        for run, depth in ((ours, wrapped_depth(ours)), (theirs, wrapped_depth(theirs)))
    )
    partners = {ours[a]: theirs[b] for a, b in align_keys(*keys)}
    free = set(theirs) - set(partners.values())
    for name in ours:
        if free and name not in partners and phase_of(name) == "backward":
            partner = _gradients_like(name, partners)
            if partner in free:
                free.remove(partner)
                partners[name] = partner
    return partners


def _gradients_like(name: str, partners: dict[str, str]) -> str:
    """Return the backward call whose forward call is the partner of this one's; empty: none."""
    if is_parameter_gradients(name):
        return name
    try:
        forward = forward_name(name)
    except NameFormatError:
        return ""
    return backward_of(partners.get(forward, ""))
