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

# Autograd's node of these takes (bias, input, weight), the API (input, weight, bias).
_BIAS_FIRST = frozenset(("linear",))


def argument_order(call: CallLeaves, partner: CallLeaves) -> Mapping[str, tuple[str, bool]]:
    """Say for each output of a backward call at which place of the partner it stands.

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
    is_linear = name.api_name in _BIAS_FIRST and len(ours) == len(theirs) == 3
    if is_linear:
        first, second = (ours, theirs) if _stands_bias_first(theirs) else (theirs, ours)
        swapped = {a.place: b.place for a, b in zip(first, second[1:] + second[:1], strict=True)}
        if first is theirs:
            swapped = {b: a for a, b in swapped.items()}
        by_place = {leaf.place: leaf for leaf in theirs}
        return {
            leaf.place: (swapped[leaf.place], _is_transposed(leaf, by_place[swapped[leaf.place]]))
            for leaf in ours
        }
    return _by_shape(ours, theirs)


def _outputs(call: CallLeaves) -> list[Leaf]:
    return [leaf for leaf in call.leaves if leaf.place.startswith("output.")]


def _stands_bias_first(leaves: list[Leaf]) -> bool:
    return leaves[0].kind == "tensor" and len(leaves[0].shape) == 1 != len(leaves[1].shape)


def _is_transposed(ours: Leaf, theirs: Leaf) -> bool:
    return (
        ours.kind == theirs.kind == "tensor"
        and len(ours.shape) == 2
        and ours.shape == theirs.shape[::-1]
        and ours.place != "output.0"
    )


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
