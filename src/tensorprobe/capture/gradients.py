"""Read the gradients of a call off the autograd graph, without adding anything to it.

The nodes that a call made are those between its outputs and its inputs whose sequence number is not
older than the call. A hook on each node at an edge of that piece hands over the gradients that
come in (of the outputs) and that leave towards the inputs. An input that is reached over several
edges gets their sum. Nothing is returned from a hook, so nothing changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["GradientWatcher", "InputEdges", "next_sequence_number"]

_Node = Any
_Geometry = tuple[torch.Size, tuple[int, ...], int]
# Which output of the node, which output of the call, and how to cut it out where it is a view.
_Output = tuple[int, int, "_Geometry | None"]
# AccumulateGrad carries the largest number there is.
_NEWEST = (1 << 64) - 1

OnGradients = Callable[[list[torch.Tensor | None], list[torch.Tensor | None]], None]


def next_sequence_number() -> int:
    """Return the number that the next node of this thread will get."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


class InputEdges:
    """Where the gradients of a call's inputs go; taken before the call, which may be in place."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.count = len(tensors)
        self.leaves: dict[int, list[int]] = defaultdict(list)
        self.nodes: dict[tuple[_Node, int], list[int]] = defaultdict(list)
        # Written in place, a view's own node is replaced and the gradient goes to its base.
        self.views: dict[int, _Geometry] = {}
        for position, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            if tensor.grad_fn is None:
                self.leaves[id(tensor)].append(position)
                continue
            self.nodes[(tensor.grad_fn, tensor.output_nr)].append(position)
            base = tensor._base
            if base is not None and base.grad_fn is not None:
                key = (base.grad_fn, base.output_nr)
                if key not in self.nodes:
                    self.nodes[key].append(position)
                    self.views[position] = _geometry_of(tensor)

    def positions_of(self, node: _Node, number: int) -> list[int]:
        """Return which inputs an edge leads to."""
        if self.nodes:
            positions = self.nodes.get((node, number))
            if positions is not None:
                return positions
        if self.leaves and hasattr(node, "variable"):
            return self.leaves.get(id(node.variable), [])
        return []


class _Collected:
    """The gradients of one call as they come in, until the last node has fired."""

    def __init__(self, outputs: int, edges: InputEdges, nodes: int, done: OnGradients) -> None:
        self.of_outputs: list[torch.Tensor | None] = [None] * outputs
        self.of_inputs: list[torch.Tensor | None] = [None] * edges.count
        self.views = edges.views
        self.has_fired = False
        self.missing = nodes
        self.done = done

    def fire(
        self,
        outputs: list[_Output],
        inputs: list[tuple[int, list[int]]],
        grad_inputs: Sequence[torch.Tensor | None],
        grad_outputs: Sequence[torch.Tensor | None],
        is_awaited: bool,
    ) -> None:
        self.has_fired = True
        for number, position, geometry in outputs:
            if self.of_outputs[position] is None:
                self.of_outputs[position] = _cut_out(grad_outputs[number], geometry)
        for number, positions in inputs:
            gradient = grad_inputs[number]
            if gradient is None:
                continue
            for position in positions:
                part = _cut_out(gradient, self.views.get(position))
                before = self.of_inputs[position]
                self.of_inputs[position] = part if before is None else before.detach() + part
        self.missing -= is_awaited
        if not self.missing:
            self.finish()

    def finish(self) -> None:
        of_outputs, self.of_outputs = self.of_outputs, []
        of_inputs, self.of_inputs = self.of_inputs, []
        self.missing = -1
        self.done(of_outputs, of_inputs)


class GradientWatcher:
    """Hooks the nodes of calls, and takes every hook away again."""

    def __init__(self, on_failure: Callable[[str, Exception], None]) -> None:
        self._handles: list[Any] = []
        self._collected: list[_Collected] = []
        self._on_failure = on_failure
        self._is_active = True

    def watch(
        self,
        name: str,
        edges: InputEdges,
        start: int,
        outputs: Sequence[torch.Tensor],
        done: OnGradients,
    ) -> None:
        """Call `done` with the gradients of the outputs and of the inputs when they are known."""
        roots: dict[_Node, list[_Output]] = defaultdict(list)
        skippable: set[_Node] = set()
        for position, tensor in enumerate(outputs):
            node = tensor.grad_fn if tensor.requires_grad else None
            if node is None or not _is_new(node, start):
                continue
            roots[node].append((tensor.output_nr, position, None))
            base = tensor._base
            if base is not None and base.grad_fn is not None and _is_new(base.grad_fn, start):
                # Should somebody write into this view later, its node is replaced and never fires;
                # then the gradient of its base says the same.
                roots[base.grad_fn].append((base.output_nr, position, _geometry_of(tensor)))
                skippable.add(node)
        if not roots:
            return
        leaving = _edges_to_inputs(list(roots), edges, start)
        nodes = {*roots, *leaving}
        awaited = len(nodes - (skippable - leaving.keys()))
        collected = _Collected(len(outputs), edges, awaited, done)
        self._collected.append(collected)
        for node in nodes:
            is_awaited = node not in skippable or node in leaving
            self._hook(
                name, node, collected, roots.get(node, []), leaving.get(node, []), is_awaited
            )

    def close(self) -> None:
        """Remove every hook, and hand over what came in of calls that did not complete."""
        self._is_active = False
        for collected in self._collected:
            if collected.has_fired and collected.missing > 0:
                collected.finish()
        self._collected.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(
        self,
        name: str,
        node: _Node,
        collected: _Collected,
        outputs: list[_Output],
        inputs: list[tuple[int, list[int]]],
        is_awaited: bool,
    ) -> None:
        def on_backward(
            grad_inputs: Sequence[torch.Tensor | None], grad_outputs: Sequence[torch.Tensor | None]
        ) -> None:
            if not self._is_active or collected.missing < 0:
                return
            try:
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    collected.fire(outputs, inputs, grad_inputs, grad_outputs, is_awaited)
            except Exception as err:  # noqa: BLE001 - counted and told by the recorder
                self._on_failure(name, err)

        self._handles.append(node.register_hook(on_backward))


def _geometry_of(view: torch.Tensor) -> _Geometry:
    return view.size(), view.stride(), int(view.storage_offset())


def _cut_out(gradient: Any, geometry: _Geometry | None) -> Any:
    """Cut the gradient of a view out of that of its base; without a geometry it is no view."""
    if gradient is None or geometry is None or gradient.shape == geometry[0]:
        return gradient
    return gradient.contiguous().as_strided(*geometry)


def _is_new(node: _Node, start: int) -> bool:
    number: int = node._sequence_nr()
    return start <= number < _NEWEST


def _edges_to_inputs(
    roots: list[_Node], edges: InputEdges, start: int
) -> dict[_Node, list[tuple[int, list[int]]]]:
    """Walk the call's own piece of the graph and find the edges that leave it towards inputs."""
    leaving: dict[_Node, list[tuple[int, list[int]]]] = {}
    pending, seen = list(roots), set(roots)
    while pending:
        node = pending.pop()
        for number, (child, child_number) in enumerate(node.next_functions):
            if child is None:
                continue
            positions = edges.positions_of(child, child_number)
            if positions:
                leaving.setdefault(node, []).append((number, positions))
            elif child not in seen and _is_new(child, start):
                seen.add(child)
                pending.append(child)
    return leaving
