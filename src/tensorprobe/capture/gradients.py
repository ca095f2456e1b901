"""Read the gradients of a call off the autograd graph, without adding anything to it.

    InputEdges (before the call) ─► GradientWatcher.watch (after it) ─► hooks on nodes ─► done

The nodes that a call made are those between its outputs and its inputs whose sequence number is not
older than the call. A hook on each node at an edge of that piece hands over the gradients that
come in (of the outputs) and that leave towards the inputs. An input that is reached over several
edges gets their sum. Nothing is returned from a hook, so nothing changes.

A call is recorded once, for the first backward pass that reaches it: its name says which forward
call it belongs to, and a second pass through the same graph has no name of its own. Gradients of
two passes are never mixed; how many were passed over is in `GradientWatcher.passed_over`.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tensorprobe.compiled import load_compiled

__all__ = ["GradientWatcher", "InputEdges", "input_edges", "next_sequence_number"]

_Node = Any
_Gradients = Sequence["torch.Tensor | None"]
# AccumulateGrad carries the largest number there is.
_NEWEST = (1 << 64) - 1
_NO_PASS = -1
_current_pass = torch._C._current_graph_task_id
_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

_Found = list["torch.Tensor | None"]
OnGradients = Callable[[str, "str | None", _Found, _Found], None]

next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Returns the number that the next node of this thread will get."""


class _View(NamedTuple):
    """Where a view lies in its base."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_stride: tuple[int, ...]

    def cut_out_of(self, gradient: torch.Tensor) -> torch.Tensor:
        """Cut the view's gradient out of its base's, which may lie in memory in another way."""
        if gradient.stride() != self.base_stride:
            gradient = torch.empty_strided(
                self.base_size, self.base_stride, dtype=gradient.dtype, device=gradient.device
            ).copy_(gradient)
        return gradient.as_strided(
            self.size, self.stride, int(gradient.storage_offset()) + self.offset
        )


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
        leaves: the places of each leaf, by its id.
        nodes: the places of each other input, by the edge that its gradient goes over.
        views: the places whose gradient comes as a part of that of their base.
    """

    __slots__ = ("_view_inputs", "count", "leaves", "nodes", "views")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.count = len(tensors)
        self.leaves: dict[int, list[int]] = {}
        self.nodes: dict[tuple[_Node, int], list[int]] = {}
        self.views: dict[int, _View] = {}
        self._view_inputs: list[_ViewInput] = []
        for position, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            if tensor._is_view():
                self._add_view(position, tensor)
            else:
                self._add(position, tensor)

    def view_input(self, tensor: torch.Tensor) -> _ViewInput | None:
        """Return what is known of a tensor if it is an input and a view."""
        for view in self._view_inputs:
            if view.tensor is tensor:
                return view
        return None

    def settle(self, outputs: Sequence[torch.Tensor]) -> None:
        """Find the nodes of inputs that are views, now that the call is over."""
        if not self._view_inputs:
            return
        written = []
        for view in self._view_inputs:
            if view.tensor._version != view.version:
                written.append(view)
            elif view.version:
                self._add(view.position, view.tensor)
        # Written in place, a view's own node is replaced and the gradient goes to its base.
        returned = [view for view in written if any(view.tensor is out for out in outputs)]
        for view in returned or written:
            cut = _place_in_base(view.tensor)
            if cut is not None and view.base_edge not in self.nodes:
                self.nodes[view.base_edge] = [view.position]
                self.views[view.position] = cut
        self._view_inputs.clear()

    def positions_under_cast(self, node: _Node) -> tuple[list[int] | None, torch.dtype | None]:
        """Return which leaf's places a cast of autocast stands for, and the leaf's type.

        Autocast casts a weight once and uses that for many calls, so the cast is no call's own.
        """
        if type(node).__name__ != "ToCopyBackward0":
            return None, None
        leaf: Any = getattr(node.next_functions[0][0], "variable", None)
        positions = self.leaves.get(id(leaf))
        return (None, None) if positions is None else (positions, leaf.dtype)

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
def _compiled() -> Any:
    """Return what finds the edges of usual calls in a fraction of the time, where it is built."""
    graph = load_compiled("tensorprobe.capture._graph", "set_up", "take", "find")
    if graph is not None:
        graph.set_up(InputEdges, _ViewInput, _ACCUMULATE, torch._C._is_any_autocast_enabled)
    return graph


def input_edges(tensors: list[torch.Tensor]) -> InputEdges:
    """Return where the gradients of a call's inputs go, as `InputEdges` itself does."""
    graph = _compiled()
    if graph is None:
        return InputEdges(tensors)
    edges: InputEdges = graph.take(tensors)
    return edges


# Which gradient of a node is which output's, and how to cut it out where that is a view.
_Output = tuple[int, int, "_View | None"]
# Which gradient of a node goes to which inputs, and the type it is cast to on the way.
_Input = tuple[int, list[int], "torch.dtype | None"]


class _Call:
    """One call, and its gradients as they come in."""

    __slots__ = (
        "done",
        "missing",
        "name",
        "nodes",
        "of_inputs",
        "of_outputs",
        "parent",
        "start",
        "task",
        "views",
    )

    def __init__(
        self,
        name: str,
        parent: str | None,
        start: int,
        outputs: int,
        edges: InputEdges,
        done: OnGradients,
    ) -> None:
        self.name = name
        self.parent = parent
        self.start = start
        # How many nodes have a hook, and how many of them have not run.
        self.nodes = self.missing = 0
        self.of_outputs: list[torch.Tensor | None] = [None] * outputs
        self.of_inputs: list[torch.Tensor | None] = [None] * edges.count
        self.views = edges.views
        self.done: OnGradients | None = done
        self.task = _NO_PASS

    def collect(
        self,
        outputs: Sequence[_Output],
        inputs: Sequence[_Input],
        grad_inputs: _Gradients,
        grad_outputs: _Gradients,
    ) -> None:
        for number, position, cut in outputs:
            gradient = grad_outputs[number]
            if self.of_outputs[position] is None and gradient is not None:
                self.of_outputs[position] = gradient if cut is None else cut.cut_out_of(gradient)
        for number, positions, dtype in inputs:
            gradient = grad_inputs[number]
            if gradient is None:
                continue
            if dtype is not None:
                gradient = gradient.to(dtype)
            for position in positions:
                view = self.views.get(position)
                part = gradient if view is None else view.cut_out_of(gradient)
                before = self.of_inputs[position]
                self.of_inputs[position] = part if before is None else before.detach() + part
        self.missing -= 1


class _NodeHook:
    """What a node calls in a backward pass.

    One object, where a function that remembers as much would be eight: what lives from a call to
    its backward is what the garbage collector has to walk through.
    """

    __slots__ = ("call", "inputs", "number", "outputs", "watcher")

    def __init__(
        self,
        watcher: GradientWatcher,
        call: _Call,
        node: _Node,
        outputs: Sequence[_Output],
        inputs: Sequence[_Input],
    ) -> None:
        self.watcher = watcher
        self.call = call
        self.number: int = node._sequence_nr()
        self.outputs = outputs
        self.inputs = inputs

    def __call__(self, grad_inputs: _Gradients, grad_outputs: _Gradients) -> None:
        self.watcher.on_backward(self, grad_inputs, grad_outputs)


class GradientWatcher:
    """Hooks the nodes of calls, and takes every hook away again.

    Attributes:
        passed_over: how often a call was reached by a second backward pass and not recorded again.
    """

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        self.passed_over = 0
        self._on_failure = on_failure
        self._handles: list[Any] = []
        # Calls that have some of their gradients, by backward pass, the newest call last.
        self._open: dict[int, list[_Call]] = {}
        # Where forward calls were made: by which threads, on which devices.
        self._threads: set[int] = set()
        self._devices: set[torch.device] = set()
        # Hooks come from several threads where there are several devices.
        self._lock = threading.RLock()
        self._is_active = True

    def watch(
        self,
        name: str,
        parent: str | None,
        edges: InputEdges,
        start: int,
        outputs: list[torch.Tensor],
        done: OnGradients,
    ) -> None:
        """Call `done` when the gradients of a call's outputs and inputs are known.

        Args:
            name: the name of the backward call; handed to `done`.
            parent: the name of the module call around it; handed to `done`.
            edges: where the gradients of the inputs go, taken before the call.
            start: the sequence number before the call.
            outputs: the tensors that it returned.
            done: gets both names, the gradients of the outputs, and those of the inputs.
        """
        roots, leaving = _nodes_at_edges(outputs, edges, start)
        if not roots:
            return
        if _current_pass() == _NO_PASS:
            self._threads.add(threading.get_ident())
            for tensor in outputs:
                self._devices.add(tensor.device)
        call = _Call(name, parent, start, len(outputs), edges, done)
        keep = self._handles.append
        for node, of_outputs in roots.items():
            hook = _NodeHook(self, call, node, of_outputs, leaving.pop(node, ()))
            keep(node.register_hook(hook))
        for node, of_inputs in leaving.items():
            keep(node.register_hook(_NodeHook(self, call, node, (), of_inputs)))
        call.nodes = call.missing = len(roots) + len(leaving)

    def close(self) -> None:
        """Remove every hook, and hand over what came in of calls that did not complete."""
        with self._lock:
            for task in list(self._open):
                self._end_pass(task)
            self._is_active = False
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def on_backward(self, hook: _NodeHook, into: _Gradients, out_of: _Gradients) -> None:
        """Take the gradients that one node of a call hands over."""
        call = hook.call
        try:
            with self._lock, torch._C.DisableTorchFunction():
                if not self._is_active or not self._begins(call, hook.number):
                    return
                if torch.is_grad_enabled():
                    with torch.no_grad():
                        call.collect(hook.outputs, hook.inputs, into, out_of)
                else:
                    call.collect(hook.outputs, hook.inputs, into, out_of)
                if not call.missing:
                    self._finish(call)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._on_failure(call.name, err)

    def _begins(self, call: _Call, number: int) -> bool:
        """Whether gradients of a call are wanted in the pass that is running now."""
        task = _current_pass()
        opened = self._open.get(task)
        # A pass runs nodes from the newest to the oldest: whatever is newer than this is over. That
        # does not hold between threads, which number on their own, nor between devices.
        if opened and len(self._threads) == len(self._devices) == 1:
            while opened and opened[-1].start > number:
                self._finish(opened[-1])
        if call.task == task:
            return call.done is not None
        if call.task != _NO_PASS:
            # A second pass. The first may have ended in an exception, half way.
            self._finish(call)
            call.task = task
            self.passed_over += 1
            return False
        call.task = task
        if call.nodes > 1:
            if opened is None:
                opened = self._open[task] = []
                end = functools.partial(self._end_pass, task)
                torch.autograd.Variable._execution_engine.queue_callback(end)
            bisect.insort(opened, call, key=_start_of)
        return True

    def _finish(self, call: _Call) -> None:
        done, call.done = call.done, None
        if done is None:
            return
        if call.nodes > 1:
            self._open[call.task].remove(call)
        of_outputs, call.of_outputs = call.of_outputs, []
        of_inputs, call.of_inputs = call.of_inputs, []
        try:
            done(call.name, call.parent, of_outputs, of_inputs)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._on_failure(call.name, err)

    def _end_pass(self, task: int) -> None:
        """Hand over the calls that this pass left incomplete, as with an output nobody used."""
        with self._lock, torch._C.DisableTorchFunction(), torch.no_grad():
            opened = self._open.get(task, [])
            while opened:
                self._finish(opened[-1])
            self._open.pop(task, None)


def _start_of(call: _Call) -> int:
    return call.start


def _is_new(node: _Node | None, start: int) -> bool:
    """Whether a node was made since; None is the node of a leaf."""
    return node is not None and start <= node._sequence_nr() < _NEWEST


def _place_in_base(view: torch.Tensor) -> _View | None:
    """Return where a view lies in its base, or None where strides cannot say it."""
    base = view._base
    if base is None or view.dtype != base.dtype or view.is_nested or base.is_nested:
        return None
    if not view.layout == base.layout == torch.strided:
        return None
    offset = int(view.storage_offset()) - int(base.storage_offset())
    return _View(view.size(), view.stride(), offset, base.size(), base.stride())


def _nodes_at_edges(
    outputs: list[torch.Tensor], edges: InputEdges, start: int
) -> tuple[dict[_Node, list[_Output]], dict[_Node, list[_Input]]]:
    """Return the nodes where gradients come into a call's piece of the graph, and leave it."""
    graph = _compiled()
    found = None if graph is None else graph.find(outputs, edges, start)
    if found is not None:
        both: tuple[dict[_Node, list[_Output]], dict[_Node, list[_Input]]] = found
        return both
    roots = _roots(outputs, edges, start)
    if not roots:
        return roots, {}
    edges.settle(outputs)
    return roots, _edges_to_inputs(roots, edges, start)


def _roots(
    outputs: Sequence[torch.Tensor], edges: InputEdges, start: int
) -> dict[_Node, list[_Output]]:
    """Return the nodes that the call made last, with the outputs whose gradients they get."""
    roots: dict[_Node, list[_Output]] = {}
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
            cut = _place_in_base(tensor) if _is_new(made, start) else None
            if cut is not None:
                # Should somebody write into this view later, its node is replaced and never runs;
                # then the gradient of its base says the same.
                roots.setdefault(made, []).append((base.output_nr, position, cut))
                if as_input is None and tensor._version:
                    # Its base may have been written into after it was made: not to be asked.
                    continue
        node = tensor.grad_fn
        if _is_new(node, start):
            roots.setdefault(node, []).append((tensor.output_nr, position, None))
    return roots


def _edges_to_inputs(
    roots: dict[_Node, list[_Output]], edges: InputEdges, start: int
) -> dict[_Node, list[_Input]]:
    """Walk the call's own piece of the graph and find the edges that leave it towards inputs."""
    leaving: dict[_Node, list[_Input]] = {}
    nodes, leaves = edges.nodes, edges.leaves
    if not nodes and not leaves:
        return leaving
    is_autocast = leaves and torch._C._is_any_autocast_enabled()
    pending, seen = list(roots), set(roots)
    # A module's piece of the graph may be long: nothing here is asked twice.
    while pending:
        node = pending.pop()
        for number, edge in enumerate(node.next_functions):
            child = edge[0]
            if child is None:
                continue
            positions = nodes.get(edge) if nodes else None
            dtype = None
            if positions is None and leaves:
                if type(child) is _ACCUMULATE:
                    positions = leaves.get(id(child.variable))
                elif is_autocast:
                    positions, dtype = edges.positions_under_cast(child)
            if positions is not None:
                leaving.setdefault(node, []).append((number, positions, dtype))
            elif child not in seen and start <= child._sequence_nr() < _NEWEST:
                seen.add(child)
                pending.append(child)
    return leaving
