"""Which gradients of a call's arguments two tools both record, and where each of them has them.

tensorprobe writes the gradients of the arguments, in their order. msprobe writes what the last
autograd node of the call returned, in that node's order: of `linear` with a bias the bias, the
input, the transposed weight. Where a call makes several nodes these are gradients of something
inside: of `cross_entropy` those of the log-softmax, in the shape of the input. So values are paired
only where one node does the whole call; elsewhere neither tool recorded what the other did, and
what the gradients should have been shows where the next call is given them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, parse_call
from tensorprobe.records import DumpInfo
from tensorprobe.store.leaves import CallLeaves, Leaf

__all__ = [
    "OTHER_GRADIENTS",
    "SAME_PLACES",
    "OfNode",
    "Places",
    "gradient_places",
    "recorder_of_nodes",
]

OTHER_GRADIENTS = "the two tools record other gradients of this call"

OfNode = Literal["candidate", "reference"]

# One node each, whatever it is given, and in the order of its arguments. What may return its own
# argument (contiguous, to, dropout) has no node then. Names are without underscores at their ends.
_ONE_NODE = frozenset(
    ("abs", "adaptive_avg_pool2d", "add", "addcdiv", "addcmul", "addmm", "amax", "amin", "atan2",
     "avg_pool2d", "avg_pool3d", "baddbmm", "batch_norm", "binary_cross_entropy", "bmm", "cat",
     "celu", "chunk", "clamp", "clone", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
     "conv_transpose2d", "conv_transpose3d", "cos", "cumsum", "div", "elu", "embedding", "erf",
     "exp", "flip", "gather", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh",
     "huber_loss", "iadd", "imul", "index_select", "isub", "itruediv", "layer_norm", "leaky_relu",
     "lerp", "log", "log10", "log1p", "log2", "log_softmax", "logsumexp", "masked_fill",
     "max_pool2d", "max_pool3d", "maximum", "mean", "minimum", "mm", "mse_loss", "mul", "mv",
     "neg", "nll_loss", "permute", "pow", "prod", "radd", "reciprocal", "relu", "relu6",
     "repeat", "reshape", "rmul", "roll", "rsqrt", "select", "selu", "sigmoid", "silu", "sin",
     "smooth_l1_loss", "softmax", "softplus", "split", "sqrt", "square", "squeeze", "stack", "std",
     "sub", "sum", "t", "tan", "tanh", "transpose", "tril", "triu", "truediv", "unbind",
     "unsqueeze", "var", "view", "where")
)  # fmt: skip
# One node each for matrices; others are reshaped before and after.
_ONE_NODE_FOR_MATRICES = frozenset(("linear", "matmul", "rmatmul"))
_LINEAR = ("input", "weight", "bias")
_NODE_OF_LINEAR = ("bias", "input", "weight")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the values of a call stand in its partner.

    Attributes:
        moved: place of a gradient to the partner's place, and whether it lies there transposed.
        is_apart: whether no gradient of the one tool is a gradient of the other.
    """

    moved: Mapping[str, tuple[str, bool]]
    is_apart: bool = False

    def partner_of(self, place: str) -> tuple[str, bool] | None:
        """Return where the value at a place stands, and whether transposed; None: nowhere."""
        moved = self.moved.get(place)
        if moved is None and not self.is_gradient_apart(place):
            is_taken = any(place == taken for taken, _ in self.moved.values())
            return None if is_taken else (place, False)
        return moved

    def is_gradient_apart(self, place: str) -> bool:
        """Whether a place is that of a gradient that the other tool did not record."""
        return self.is_apart and place.startswith("output.")


SAME_PLACES = Places({})
_APART = Places({}, True)


def recorder_of_nodes(candidate: DumpInfo, reference: DumpInfo) -> OfNode | None:
    """Say which run alone has the gradients of nodes; None where both have gradients of one kind.

    >>> recorder_of_nodes(DumpInfo(tool="msprobe"), DumpInfo(tool="tensorprobe"))
    'candidate'
    """
    if {candidate.tool, reference.tool} != {"tensorprobe", "msprobe"}:
        return None
    return "candidate" if candidate.tool == "msprobe" else "reference"


def gradient_places(call: CallLeaves, partner: CallLeaves, of_node: OfNode | None) -> Places:
    """Say at which place of the partner each gradient of a backward call stands.

    Args:
        call: a call of the candidate.
        partner: the same call of the reference.
        of_node: which run has the gradients of nodes.
    """
    if of_node is None:
        return SAME_PLACES
    try:
        name = parse_call(call.name)
    except NameFormatError:
        return SAME_PLACES
    if not isinstance(name, ApiCall) or name.direction != "backward":
        return SAME_PLACES
    operation = name.api_name.strip("_")
    ours, theirs = _outputs(call), _outputs(partner)
    if operation in _ONE_NODE:
        return Places(_by_shape(ours, theirs))
    if operation not in _ONE_NODE_FOR_MATRICES or not _is_of_matrices(call):
        return _APART
    if operation != "linear":
        return Places(_by_shape(ours, theirs))
    of_arguments, of_nodes = (theirs, ours) if of_node == "candidate" else (ours, theirs)
    pairs = _pair_linear(of_arguments, of_nodes)
    if pairs is None:
        return _APART
    moved = {}
    for argument, node, is_weight in pairs:
        first, second = (node, argument) if of_node == "candidate" else (argument, node)
        moved[first.place] = (second.place, is_weight and first.kind == second.kind == "tensor")
    return Places(moved)


def _outputs(call: CallLeaves) -> list[Leaf]:
    return [leaf for leaf in call.leaves if leaf.place.startswith("output.")]


def _is_of_matrices(call: CallLeaves) -> bool:
    """Whether the gradient that arrived is a matrix, as the result then was."""
    given = next((leaf for leaf in call.leaves if leaf.place == "input.0"), None)
    return given is not None and len(given.shape) == 2


def _pair_linear(
    of_arguments: Sequence[Leaf], of_node: Sequence[Leaf]
) -> list[tuple[Leaf, Leaf, bool]] | None:
    """Pair the gradients of `linear`, each with whether it is the weight's; None: by no rule."""
    if len(of_arguments) != len(of_node) or len(of_node) not in (2, 3):
        return None
    count = len(of_node)
    order = _NODE_OF_LINEAR if count == 3 else _LINEAR[:2]
    arguments = dict(zip(_LINEAR, of_arguments, strict=False))
    pairs = [
        (arguments[role], leaf, role == "weight") for role, leaf in zip(order, of_node, strict=True)
    ]
    fits = all(
        argument.shape == (node.shape[::-1] if is_weight else node.shape)
        for argument, node, is_weight in pairs
        if argument.kind == node.kind == "tensor"
    )
    return pairs if fits else None


def _by_shape(ours: Sequence[Leaf], theirs: Sequence[Leaf]) -> dict[str, tuple[str, bool]]:
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
