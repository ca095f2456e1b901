"""Where the gradients of a call's arguments stand in the dumps of the two tools.

tensorprobe writes them in the order of the arguments. msprobe writes what the last autograd node
returned, in that node's order: of `linear` with a bias the bias, the input, the transposed weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, parse_call
from tensorprobe.store.leaves import CallLeaves, Leaf

__all__ = ["argument_order"]

_ARGUMENTS = ("input", "weight", "bias")
_AUTOGRAD = ("bias", "input", "weight")


def argument_order(
    call: CallLeaves, partner: CallLeaves, *, is_autograd: bool
) -> Mapping[str, tuple[str, bool]]:
    """Say for each output of a backward call at which place of the partner it stands.

    Args:
        call: a call of the candidate.
        partner: the same call of the reference.
        is_autograd: whether the candidate, and not the reference, has autograd's order.

    Returns:
        Place of a gradient to the partner's place, and whether it lies there transposed. Empty
        where the two have one order.
    """
    try:
        name = parse_call(call.name)
    except NameFormatError:
        return {}
    if not isinstance(name, ApiCall) or name.direction != "backward":
        return {}
    ours, theirs = _outputs(call), _outputs(partner)
    by_argument, by_autograd = (theirs, ours) if is_autograd else (ours, theirs)
    if name.api_name != "linear" or not _has_bias_first(by_autograd, by_argument):
        return _by_shape(ours, theirs)
    roles = [
        dict(zip(_ARGUMENTS, by_argument, strict=True)),
        dict(zip(_AUTOGRAD, by_autograd, strict=True)),
    ]
    first, second = reversed(roles) if is_autograd else roles
    return {
        leaf.place: (second[role].place, role == "weight" and _is_reversed(leaf, second[role]))
        for role, leaf in first.items()
    }


def _outputs(call: CallLeaves) -> list[Leaf]:
    return [leaf for leaf in call.leaves if leaf.place.startswith("output.")]


def _has_bias_first(by_autograd: list[Leaf], by_argument: list[Leaf]) -> bool:
    """Whether the node was that of `addmm`; of inputs with more dimensions it is another."""
    return (
        len(by_autograd) == len(by_argument) == 3
        and by_autograd[0].kind == by_argument[2].kind == "tensor"
        and by_autograd[0].shape == by_argument[2].shape
    )


def _is_reversed(ours: Leaf, theirs: Leaf) -> bool:
    return ours.kind == theirs.kind == "tensor" and ours.shape == theirs.shape[::-1]


def _by_shape(ours: list[Leaf], theirs: list[Leaf]) -> dict[str, tuple[str, bool]]:
    """Pair tensors of one shape in their order; what has no partner keeps its place."""
    free = [leaf for leaf in theirs if leaf.kind == "tensor"]
    order = {}
    for leaf in ours:
        if leaf.kind != "tensor":
            continue
        other = next((other for other in free if other.shape == leaf.shape), None)
        if other is not None:
            free.remove(other)
            order[leaf.place] = (other.place, False)
    return order if any(place != other for place, (other, _) in order.items()) else {}
