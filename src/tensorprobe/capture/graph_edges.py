"""Find the edges of a call's piece of the autograd graph, where gradients come in and leave it.

    input_edges (before the call) ─► nodes_at_edges (after it): roots, and nodes towards the inputs
                                  └► only_root (after it) ─► nodes_leaving (in the backward pass)

The nodes that a call made are those between its outputs and its inputs whose sequence number is not
older than the call. Where the node at an edge only gives a gradient another shape, its neighbour
inside is asked in its place: `linear` then has one hook and not four. The usual call is found by
_graph.c, which has the same meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from tensorprobe.capture.transforms import below_vmap, is_transforming
from tensorprobe.system.extensions import load_compiled

__all__ = [
    "InputEdges",
    "NodeInput",
    "NodeOutput",
    "compiled_graph",
    "input_edges",
    "is_new",
    "next_sequence_number",
    "nodes_at_edges",
    "nodes_leaving",
    "only_root",
    "place_in_base",
]

_Node = Any
# AccumulateGrad carries the largest number there is.
_NEWEST = (1 << 64) - 1
_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
# Over which edge of which node each node of a call's piece is reached; None: over several, or from
# outside.
_Incoming = dict[_Node, "tuple[_Node, int] | None"]
_RESHAPING = frozenset(
    ("ExpandBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "ViewBackward0")
)

next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Returns the number that the next node of this thread will get."""


class _View(NamedTuple):
    """Where a view lies in its base."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_stride: tuple[int, ...]

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Cut the view's gradient out of its base's, which may lie in memory in another way."""
        if gradient.stride() != self.base_stride:
            gradient = torch.empty_strided(
                self.base_size, self.base_stride, dtype=gradient.dtype, device=gradient.device
            ).copy_(gradient)
        return gradient.as_strided(
            self.size, self.stride, int(gradient.storage_offset()) + self.offset
        )


class _Cast(NamedTuple):
    """Autocast's, on the way to a leaf."""

    dtype: torch.dtype

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to(self.dtype)


class _Reshape(NamedTuple):
    """Another shape for the same elements, or for their sum where they were expanded."""

    size: torch.Size

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.numel() != self.size.numel():
            return gradient.sum_to_size(self.size)
        return gradient.reshape(self.size)


class _Changes(NamedTuple):
    """Two changes, one after the other."""

    first: _Change
    second: _Change

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(gradient))


def _transpose(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.t()


# What becomes of a gradient between a node and what it is recorded as.
_Change = Callable[[torch.Tensor], torch.Tensor] | _View | _Cast | _Reshape | _Changes
# Which gradient of a node is which output's, and its change: cut out where that is a view.
NodeOutput = tuple[int, int, "_Change | None"]
# Which gradient of a node goes to which inputs, and its change on the way.
NodeInput = tuple[int, list[int], "_Change | None"]


class _ViewInput(NamedTuple):
    """An input that is a view: which node its gradient goes to is known after the call only."""

    position: int
    tensor: torch.Tensor
    version: int
    base_edge: tuple[_Node, int]


class InputEdges:
    """Where the gradients of a call's inputs go; taken before the call, which may be in place.

    A view that was written into through another one gets a new node when somebody asks for it.
    Asking early would give that node another place in the order of the backward pass, and sums of
    gradients other last bits; so such a view is asked only once the call has used it.

    Attributes:
        count: how many tensors the call was given.
        is_cast: whether autocast may have cast a leaf.
        leaves: the places of each leaf, by its id.
        nodes: the places of each other input, by the edge that its gradient goes over.
        views: the edges over which the gradient of a base goes, and which part of it is an input's.
    """

    __slots__ = ("_view_inputs", "count", "is_cast", "leaves", "nodes", "views")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.count = len(tensors)
        self.leaves: dict[int, list[int]] = {}
        self.nodes: dict[tuple[_Node, int], list[int]] = {}
        self.views: dict[tuple[_Node, int], _View] = {}
        self._view_inputs: list[_ViewInput] = []
        for position, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            if tensor._is_view():
                self._add_view(position, tensor)
            else:
                self._add(position, tensor)
        self.is_cast = bool(self.leaves) and torch._C._is_any_autocast_enabled()

    def view_input(self, tensor: torch.Tensor) -> _ViewInput | None:
        """Return what is known of a tensor if it is an input and a view."""
        for view in self._view_inputs:
            if view.tensor is tensor:
                return view
        return None

    @property
    def has_written_views(self) -> bool:
        """Whether somebody has written into an input that is a view."""
        return any(view.tensor._version for view in self._view_inputs)

    def settle(self, outputs: Sequence[torch.Tensor]) -> None:
        """Find the nodes of inputs that are views, now that the call is over."""
        if not self._view_inputs:
            return
        written = []
        for view in self._view_inputs:
            if view.tensor._version != view.version:
                written.append(view)
            elif view.version:
                self.nodes, self.leaves = dict(self.nodes), dict(self.leaves)
                self._add(view.position, view.tensor)
        # Written in place, a view's own node is replaced and the gradient goes to its base.
        returned = [view for view in written if any(view.tensor is out for out in outputs)]
        for view in returned or written:
            cut = place_in_base(view.tensor)
            if cut is not None and view.base_edge not in self.nodes:
                # Empty ones are shared, so they are not written into.
                self.nodes = {**self.nodes, view.base_edge: [view.position]}
                self.views = {**self.views, view.base_edge: cut}
        self._view_inputs.clear()

    def positions_under_cast(self, node: _Node) -> tuple[list[int] | None, _Cast | None]:
        """Return which leaf's places a cast of autocast stands for, and the cast to its type.

        Autocast casts a weight once and uses that for many calls, so the cast is no call's own.
        """
        if type(node).__name__ != "ToCopyBackward0":
            return None, None
        leaf: Any = getattr(node.next_functions[0][0], "variable", None)
        positions = self.leaves.get(id(leaf))
        return (None, None) if positions is None else (positions, _Cast(leaf.dtype))

    def _add(self, position: int, tensor: torch.Tensor) -> None:
        node = tensor.grad_fn
        if node is None:
            self.leaves.setdefault(id(tensor), []).append(position)
        else:
            self.nodes.setdefault((node, tensor.output_nr), []).append(position)

    def _add_view(self, position: int, tensor: torch.Tensor) -> None:
        base, version = tensor._base, tensor._version
        assert base is not None
        if not version:
            # Nobody has written into it: its node is what it was.
            self._add(position, tensor)
        base_edge = (base.grad_fn, base.output_nr)
        self._view_inputs.append(_ViewInput(position, tensor, version, base_edge))


@functools.cache
def compiled_graph() -> Any:
    """Return what finds the edges of usual calls in a fraction of the time, where it is built."""
    graph = load_compiled(
        "tensorprobe.capture._calls", "set_up_graph", "find_leaving", part="capture._graph"
    )
    if graph is not None:
        is_autocast_on = torch._C._is_any_autocast_enabled
        graph.set_up_graph(
            InputEdges,
            _ViewInput,
            _ACCUMULATE,
            is_autocast_on,
            place_in_base,
            _only_reshapes,
            _View,
        )
    return graph


def input_edges(tensors: list[torch.Tensor]) -> InputEdges:
    """Return where the gradients of a call's inputs go, as `InputEdges` itself does."""
    if is_transforming():
        tensors = [below_vmap(tensor) for tensor in tensors]
    graph = compiled_graph()
    if graph is None:
        return InputEdges(tensors)
    edges: InputEdges = graph.take_edges(tensors)
    return edges


def is_new(node: _Node | None, start: int) -> bool:
    """Whether a node was made since; None is the node of a leaf."""
    return node is not None and start <= node._sequence_nr() < _NEWEST


def place_in_base(view: torch.Tensor) -> _View | None:
    """Return where a view lies in its base, or None where strides cannot say it."""
    base = view._base
    if base is None or view.dtype != base.dtype or view.is_nested or base.is_nested:
        return None
    if not view.layout == base.layout == torch.strided:
        return None
    offset = int(view.storage_offset()) - int(base.storage_offset())
    return _View(view.size(), view.stride(), offset, base.size(), base.stride())


def nodes_at_edges(
    outputs: list[torch.Tensor], edges: InputEdges, start: int, *, passes_over_shapes: bool = True
) -> tuple[dict[_Node, list[NodeOutput]], dict[_Node, list[NodeInput]]]:
    """Return the nodes where gradients come into a call's piece of the graph, and leave it.

    Args:
        outputs: the tensors that the call returned or, if none, wrote into.
        edges: where the gradients of its inputs go.
        start: the sequence number before the call.
        passes_over_shapes: whether fewer nodes may do. What they hand over is reshaped here, and is
            then not the very tensor that another call gets. Not where somebody outside may use a
            tensor from inside the call, as one that a module keeps in an attribute: a neighbour
            then gets, or hands over, another sum.
    """
    if is_transforming():
        outputs = [below_vmap(tensor) for tensor in outputs]
    graph = compiled_graph()
    found = None if graph is None else graph.find_nodes(outputs, edges, start)
    if found is None:
        roots = _roots(outputs, edges, start)
        if not roots:
            return roots, {}
        edges.settle(outputs)
        leaving, incoming = _edges_to_inputs(roots, edges, start)
    else:
        roots, leaving, incoming = found
    if len(outputs) > 1:
        _forget_shared_bases(roots)
    if passes_over_shapes and len(incoming) > 1:
        pass_over_shapes(roots, leaving, incoming)
    return roots, leaving


def only_root(
    outputs: list[torch.Tensor], edges: InputEdges, start: int, *, passes_over_shapes: bool
) -> tuple[_Node, list[NodeOutput]] | tuple[()] | None:
    """Return the one node where gradients come into a usual call's piece of the graph.

    Its `nodes_leaving` can be asked for when it runs: what nobody else gets hold of runs after it.

    Returns:
        The node and its outputs; () if no gradient comes; None where `nodes_at_edges` must say.
    """
    if is_transforming():
        return None
    graph = compiled_graph()
    if graph is not None:
        found: tuple[_Node, list[NodeOutput]] | tuple[()] | None
        found = graph.find_root(outputs, edges, start, passes_over_shapes)
        return found
    if edges.has_written_views or any(edges.view_input(tensor) for tensor in outputs):
        return None
    roots = _roots(outputs, edges, start)
    if passes_over_shapes and len(outputs) == 1:
        _drop_reshaping_root(roots)
    elif any(cut is not None for places in roots.values() for *_, cut in places):
        return None
    if len(roots) > 1:
        return None
    edges.settle(outputs)
    return next(iter(roots.items()), ())


def nodes_leaving(
    root: _Node, edges: InputEdges, start: int, *, passes_over_shapes: bool
) -> dict[_Node, list[NodeInput]]:
    """Return the nodes where gradients leave a call's piece of the graph, which has one root."""
    graph = compiled_graph()
    if graph is None:
        leaving, incoming = _edges_to_inputs((root,), edges, start)
    else:
        leaving, incoming = graph.find_leaving(root, edges, start)
    if passes_over_shapes and len(incoming) > 1:
        pass_over_shapes((root,), leaving, incoming)
    return leaving


def _roots(
    outputs: Sequence[torch.Tensor], edges: InputEdges, start: int
) -> dict[_Node, list[NodeOutput]]:
    """Return the nodes that the call made last, with the outputs whose gradients they get."""
    roots: dict[_Node, list[NodeOutput]] = {}
    for position, tensor in enumerate(outputs):
        if not tensor.requires_grad:
            continue
        if tensor._is_view():
            as_input = edges.view_input(tensor)
            if as_input is not None and as_input.version == tensor._version:
                # Handed back as it came.
                continue
            base = tensor._base
            assert base is not None
            made = base.grad_fn
            cut = place_in_base(tensor) if is_new(made, start) else None
            if cut is not None:
                # Should somebody write into this view later, its node is replaced and never runs;
                # then the gradient of its base says the same.
                roots.setdefault(made, []).append((base.output_nr, position, cut))
                if as_input is not None or tensor._version:
                    # Its own node gets a part: what comes by way of the base, or of another view of
                    # that, does not pass there. Nor is a view to be asked for its node if its base
                    # may have been written into since.
                    continue
        node = tensor.grad_fn
        if is_new(node, start):
            roots.setdefault(node, []).append((tensor.output_nr, position, None))
    return roots


def _forget_shared_bases(roots: dict[_Node, list[NodeOutput]]) -> None:
    """Leave the bases of views alone that are used for something else in the call, too.

    What comes in there is not the gradient of the view, as with the weights of an attention that
    nobody uses but the attention itself.
    """
    bases = {n: places for n, places in roots.items() if any(cut is not None for *_, cut in places)}
    if not bases:
        return
    own = {place: n for n, places in roots.items() for _, place, cut in places if cut is None}
    users = _count_users(roots, min(node._sequence_nr() for node in bases))
    for base, places in bases.items():
        # Somebody may be given the base itself.
        is_output = any(cut is None for *_, cut in places)
        kept = [
            (number, place, cut)
            for number, place, cut in places
            if cut is None or not (is_output or _is_shared(base, own.get(place), users))
        ]
        if kept:
            roots[base] = kept
        else:
            del roots[base]


def _count_users(roots: dict[_Node, list[NodeOutput]], oldest: int) -> dict[_Node, int]:
    """Count the edges to each node of a call's piece that is no older than this."""
    users: dict[_Node, int] = {}
    pending = list(roots)
    seen = set(roots)
    while pending:
        for child, _ in pending.pop().next_functions:
            if child is not None and oldest <= child._sequence_nr() < _NEWEST:
                users[child] = users.get(child, 0) + 1
                if child not in seen:
                    seen.add(child)
                    pending.append(child)
    return users


def _is_shared(base: _Node, view: _Node | None, users: dict[_Node, int]) -> bool:
    """Whether a view's base is used in another way than by this view."""
    if view is None:
        # Written into, so its node is none of those that were counted.
        return base in users
    while view is not base:
        following = view.next_functions
        if not following or users.get(following[0][0]) != 1:
            return True
        view = following[0][0]
    return False


def _edges_to_inputs(
    roots: Collection[_Node], edges: InputEdges, start: int
) -> tuple[dict[_Node, list[NodeInput]], _Incoming]:
    """Walk the call's own piece of the graph and find the edges that leave it towards inputs."""
    leaving: dict[_Node, list[NodeInput]] = {}
    incoming: _Incoming = {}
    nodes, leaves = edges.nodes, edges.leaves
    if not nodes and not leaves:
        return leaving, incoming
    pending = list(roots)
    incoming = dict.fromkeys(roots)
    # A module's piece of the graph may be long: nothing here is asked twice.
    while pending:
        node = pending.pop()
        for number, edge in enumerate(node.next_functions):
            child = edge[0]
            if child is None:
                continue
            positions = nodes.get(edge) if nodes else None
            change: _Change | None = edges.views.get(edge) if edges.views else None
            if positions is None and leaves:
                if type(child) is _ACCUMULATE:
                    positions = leaves.get(id(child.variable))
                elif edges.is_cast:
                    positions, change = edges.positions_under_cast(child)
            if positions is not None:
                leaving.setdefault(node, []).append((number, positions, change))
            elif child in incoming:
                incoming[child] = None
            elif start <= child._sequence_nr() < _NEWEST:
                incoming[child] = (node, number)
                pending.append(child)
    return leaving, incoming


def pass_over_shapes(
    roots: Collection[_Node], leaving: dict[_Node, list[NodeInput]], incoming: _Incoming
) -> None:
    """Ask the neighbours of nodes towards inputs that only give a gradient another shape.

    Such a node has one way in and one way out, so the neighbour hands over the same.
    """
    for node in list(leaving):
        while node not in roots and len(leaving[node]) == 1:
            before, change = incoming[node], _change_of_shape(node)
            if before is None or change is None:
                break
            _, positions, further = leaving.pop(node)[0]
            node, number = before
            whole = change if further is None else _Changes(change, further)
            leaving.setdefault(node, []).append((number, positions, whole))


def _drop_reshaping_root(roots: dict[_Node, list[NodeOutput]]) -> None:
    """Ask only the node of a view's base, where the view has nothing but another shape."""
    if len(roots) != 2:
        return
    base, own = roots
    is_base_asked = all(cut is not None for *_, cut in roots[base])
    following = own.next_functions
    if is_base_asked and len(following) == 1 and following[0][0] is base and _only_reshapes(own):
        del roots[own]


def _only_reshapes(node: _Node) -> bool:
    return type(node).__name__ in _RESHAPING


def _change_of_shape(node: _Node) -> _Change | None:
    """Return what a node does to a gradient, if that is another shape and nothing else."""
    kind = type(node).__name__
    if kind == "TBackward0":
        return _transpose
    return _Reshape(torch.Size(node._saved_self_sym_sizes)) if _only_reshapes(node) else None
