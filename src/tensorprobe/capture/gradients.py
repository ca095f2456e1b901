"""Read the gradients of a call off the autograd graph, without adding anything to it.

    input_edges (before the call) ─► GradientWatcher.watch (after it) ─► hooks on nodes ─► done

Where the gradients of a call come in at one node, only that is hooked at once, and the nodes behind
it when it runs: a forward pass on a GPU waits for the host, a backward pass does not. That is too
late where somebody uses a tensor from inside the call and not what it returned; so modules that
call no others, and the user's own functions, are hooked everywhere at once. Of a module that does
call others there is no record then: those inside have theirs.

A hook on each node at an edge of the call's piece of the graph hands over the gradients that come
in (of the outputs) and that leave towards the inputs. An input that is reached over several edges
gets their sum. Nothing is returned from a hook, so nothing changes.

A call is recorded once, for the first backward pass that reaches it: its name says which forward
call it belongs to, and a second pass through the same graph has no name of its own. Gradients of
two passes are never mixed; how many were passed over is in `GradientWatcher.passed_over`.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorprobe.capture.dispatch_modes import count_dispatch_modes, without_dispatch_modes
from tensorprobe.capture.graph_edges import (
    InputEdges,
    NodeInput,
    NodeOutput,
    nodes_at_edges,
    nodes_leaving,
    only_root,
)
from tensorprobe.system.extensions import is_turned_off

__all__ = ["GradientWatcher", "RootHook"]

_Gradients = Sequence["torch.Tensor | None"]
_NO_PASS = -1
_current_pass = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node

_Found = list["torch.Tensor | None"]
OnGradients = Callable[[str, "str | None", _Found, _Found], None]


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
        "unused",
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
        self.done: OnGradients | None = done
        self.task = _NO_PASS
        # Outputs whose own node has run without a gradient for them: the gradient of the base of
        # such a view comes from elsewhere.
        self.unused: tuple[int, ...] = ()

    def collect(
        self,
        outputs: Sequence[NodeOutput],
        inputs: Sequence[NodeInput],
        grad_inputs: _Gradients,
        grad_outputs: _Gradients,
    ) -> None:
        for number, position, change in outputs:
            gradient = grad_outputs[number]
            if gradient is None:
                if change is None:
                    self.unused += (position,)
            elif self.of_outputs[position] is None:
                if change is None:
                    self.of_outputs[position] = gradient
                elif position not in self.unused:
                    self.of_outputs[position] = change(gradient)
        for number, positions, change in inputs:
            gradient = grad_inputs[number]
            if gradient is None:
                continue
            if change is not None:
                gradient = change(gradient)
            for position in positions:
                before = self.of_inputs[position]
                self.of_inputs[position] = (
                    gradient if before is None else before.detach() + gradient
                )
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
        node: Any,
        outputs: Sequence[NodeOutput],
        inputs: Sequence[NodeInput],
    ) -> None:
        self.watcher = watcher
        self.call = call
        self.number: int = node._sequence_nr()
        self.outputs = outputs
        self.inputs = inputs

    def __call__(self, grad_inputs: _Gradients, grad_outputs: _Gradients) -> None:
        self.watcher.on_backward(self, grad_inputs, grad_outputs)


class RootHook:
    """What the only root of a call calls: the rest of its piece is looked for when it does.

    Attributes:
        watcher: whom it tells.
        name: of the backward call.
        parent: of the module call around it.
        start: the sequence number before the call.
        count: how many tensors it returned.
        edges: where the gradients of its inputs go.
        done: gets the gradients.
        outputs: which gradients of the root are which output's.
        is_sealed: as `GradientWatcher.watch` has it.
        hook: what the root calls in its place once the rest is found.
    """

    __slots__ = (
        "count", "done", "edges", "hook", "is_sealed", "name", "outputs", "parent", "start",
        "watcher",
    )  # fmt: skip

    def __init__(
        self,
        watcher: GradientWatcher,
        name: str,
        parent: str | None,
        start: int,
        count: int,
        edges: InputEdges,
        done: OnGradients,
        outputs: Sequence[NodeOutput],
        *,
        is_sealed: bool,
    ) -> None:
        self.watcher = watcher
        self.name = name
        self.parent = parent
        self.start = start
        self.is_sealed = is_sealed
        self.count = count
        self.edges = edges
        self.done = done
        self.outputs = outputs
        self.hook: Callable[[_Gradients, _Gradients], None] | None = None

    def __call__(self, grad_inputs: _Gradients, grad_outputs: _Gradients) -> None:
        """Hand the root's gradients over."""
        hook = self.hook or self.watcher.begin(self, grad_inputs, grad_outputs)
        if hook is not None:
            hook(grad_inputs, grad_outputs)


class GradientWatcher:
    """Hooks the nodes of calls, and takes every hook away again.

    Args:
        on_failure: told of what goes wrong, with the name of the call.
        keeps_tensors: whether data are kept, each tensor's once: calls then hand over the same.

    Attributes:
        is_active: whether gradients are taken; not once it is closed.
        passed_over: how often a call was reached by a second backward pass and not recorded again.
    """

    def __init__(
        self, on_failure: Callable[[str, Exception], None], *, keeps_tensors: bool = False
    ) -> None:
        self.passed_over = 0
        self._on_failure = on_failure
        self._keeps_tensors = keeps_tensors
        self._handles: list[Any] = []
        # Calls that have some of their gradients, by backward pass, the newest call last.
        self._open: dict[int, list[_Call]] = {}
        # Where forward calls were made: by which threads, on which devices.
        self._threads: set[int] = set()
        self._devices: set[torch.device] = set()
        # Hooks come from several threads where there are several devices.
        self._lock = threading.RLock()
        self.is_active = True
        # What takes the gradients of usual calls in compiled code, where there is such a thing.
        self.fast_recorder: Any = None

    def watch(
        self,
        name: str,
        parent: str | None,
        edges: InputEdges,
        start: int,
        outputs: list[torch.Tensor],
        done: OnGradients,
        *,
        is_sealed: bool = False,
        is_late: bool = False,
    ) -> None:
        """Call `done` when the gradients of a call's outputs and inputs are known.

        Args:
            name: the name of the backward call; handed to `done`.
            parent: the name of the module call around it; handed to `done`.
            edges: where the gradients of the inputs go, taken before the call.
            start: the sequence number before the call.
            outputs: the tensors that it returned or, if it returned none, wrote into.
            done: gets both names, the gradients of the outputs, and those of the inputs.
            is_sealed: whether nobody outside the call gets hold of a tensor from inside but what it
                returns, as is so with a function of torch and not with a module.
            is_late: whether nothing is to be recorded, and so nothing need be looked for, before
                what it returned has a gradient; so with what is sealed.
        """
        over = is_sealed and not self._keeps_tensors
        root = None
        if is_sealed or is_late:
            root = only_root(outputs, edges, start, passes_over_shapes=over)
        keep = self._handles.append
        if root is not None:
            if root:
                self.note_place(outputs)
                node, places = root
                count = len(outputs)
                hook = RootHook(
                    self, name, parent, start, count, edges, done, places, is_sealed=is_sealed
                )
                keep(node.register_hook(hook))
            return
        roots, leaving = nodes_at_edges(outputs, edges, start, passes_over_shapes=over)
        if not roots:
            return
        self.note_place(outputs)
        call = _Call(name, parent, start, len(outputs), edges, done)
        for node, of_outputs in roots.items():
            hooked = _NodeHook(self, call, node, of_outputs, leaving.pop(node, ()))
            keep(node.register_hook(hooked))
        for node, of_inputs in leaving.items():
            keep(node.register_hook(_NodeHook(self, call, node, (), of_inputs)))
        call.nodes = call.missing = len(roots) + len(leaving)

    def note_place(self, outputs: Sequence[torch.Tensor]) -> None:
        """Note by which thread and on which devices a call was made, if it is a forward one."""
        if _current_pass() == _NO_PASS:
            self._threads.add(threading.get_ident())
            for tensor in outputs:
                self._devices.add(tensor.device)

    def parts(self) -> dict[str, Any]:
        """Return what _fast_recorder.c hooks a call's root with, by the names that it knows."""
        return {
            "gradients": self,
            "add_handle": self._handles.append,
            "opened": None if is_turned_off("capture._gradients") else self._open,
            "call_class": _Call,
            "node_hook_class": _NodeHook,
            "gradients_lock": self._lock,
        }

    def pass_over(self, grad_inputs: _Gradients, grad_outputs: _Gradients) -> None:
        """Count a call that another backward pass reaches, of which the first is recorded."""
        with self._lock:
            self.passed_over += self.is_active

    def begin(
        self, root: RootHook, grad_inputs: _Gradients, grad_outputs: _Gradients
    ) -> _NodeHook | None:
        """Take the gradients of a root that runs for the first time; returns who is to do it."""
        # Another thread may stop the capture meanwhile.
        fast_recorder = self.fast_recorder
        try:
            if fast_recorder is not None and fast_recorder.on_root(root, grad_inputs, grad_outputs):
                return None
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._on_failure(root.name, err)
            return None
        return self.find_rest(root)

    def find_rest(self, root: RootHook) -> _NodeHook | None:
        """Hook the nodes behind a root, which is running and of which none has run; once.

        Args:
            root: its hook, of this class or of _gradients.c.

        Returns:
            Who is to take the gradients of the root.
        """
        try:
            with self._lock, torch._C.DisableTorchFunction():
                if not self.is_active:
                    return None
                call = _Call(root.name, root.parent, root.start, root.count, root.edges, root.done)
                node = _current_node()
                over = root.is_sealed and not self._keeps_tensors
                leaving = nodes_leaving(node, root.edges, root.start, passes_over_shapes=over)
                hook = _NodeHook(self, call, node, root.outputs, leaving.pop(node, ()))
                for inner, of_inputs in leaving.items():
                    behind = _NodeHook(self, call, inner, (), of_inputs)
                    self._handles.append(inner.register_hook(behind))
                call.nodes = call.missing = 1 + len(leaving)
                root.hook = hook
                return hook
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._on_failure(root.name, err)
            return None

    def close(self) -> None:
        """Remove every hook, and hand over what came in of calls that did not complete."""
        with self._lock:
            for task in list(self._open):
                self._end_pass(task)
            self.is_active = False
            self.fast_recorder = None
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def on_backward(self, hook: _NodeHook, into: _Gradients, out_of: _Gradients) -> None:
        """Take the gradients that one node of a call hands over."""
        call = hook.call
        fast_recorder = self.fast_recorder
        try:
            if fast_recorder is not None and fast_recorder.on_node(hook, into, out_of):
                return
            with self._lock, torch._C.DisableTorchFunction():
                if not self.is_active or not self._begins(call, hook.number):
                    return
                if count_dispatch_modes():
                    with torch.no_grad(), without_dispatch_modes():
                        call.collect(hook.outputs, hook.inputs, into, out_of)
                elif torch.is_grad_enabled():
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
            bisect.insort(self.open_pass(task), call, key=_start_of)
        return True

    def open_pass(self, task: int) -> list[_Call]:
        """Return the calls that have some of their gradients in the pass that is running."""
        opened = self._open.get(task)
        if opened is None:
            opened = self._open[task] = []
            end = functools.partial(self._end_pass, task)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        return opened

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
