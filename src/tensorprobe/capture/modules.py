"""L0: see every module call through torch's global module hooks."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from tensorprobe.capture.describe import Drafted, tensors_in
from tensorprobe.capture.graph_edges import InputEdges, input_edges, next_sequence_number
from tensorprobe.capture.named_models import COMPILED, ModuleNames
from tensorprobe.names import ParameterGradients, module_text
from tensorprobe.records import Frame

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["ModuleWatcher", "is_compiled_wrapper"]


_COMPILED_CLASS = "OptimizedModule"
# Modules of torch that call one function of torch and keep nothing of it.
_SEALED = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "batchnorm", "conv", "dropout", "flatten", "instancenorm", "linear",
        "normalization", "padding", "pixelshuffle", "pooling", "sparse", "upsampling",
    )
)  # fmt: skip


def is_compiled_wrapper(module: torch.nn.Module) -> bool:
    """Whether a module is what torch.compile returned; the one inside it is recorded."""
    return type(module).__name__ == _COMPILED_CLASS and COMPILED in module._modules


def is_sealed(module: torch.nn.Module) -> bool:
    """Whether nobody outside a module's call gets hold of a tensor from inside but its output."""
    return (
        _sealed_forward(type(module)) is not None
        # Somebody may have given the module a `forward` of his own.
        and "forward" not in module.__dict__
        and not module._modules
        and not module._forward_pre_hooks
        and not module._forward_hooks
    )


def _sealed_forward(kind: type[torch.nn.Module]) -> Any | None:
    """Return what modules of a sealed class run; None for other classes."""
    if kind.__module__ not in _SEALED:
        return None
    # Somebody may have given the class a `forward` of his own.
    is_own = getattr(kind.forward, "__globals__", {}).get("__name__") in _SEALED
    return kind.forward if is_own else None


def is_sharded(kind: type[torch.nn.Module]) -> bool:
    """Whether `fully_shard` made a class, whose modules gather their parameters for each call."""
    return hasattr(kind, "_get_fsdp_state")


def _kind_of(kind: type[torch.nn.Module]) -> tuple[str | None, bool, Any | None]:
    """Return what _modules.c asks of a class: its name, if usual, is_sharded, and its forward."""
    name = None if kind.__name__ == _COMPILED_CLASS else kind.__name__
    return name, is_sharded(kind), _sealed_forward(kind)


# A tensor in the place of a parameter, and the handle of its hook, if it could be hooked.
_HookedTensor = tuple["weakref.ref[torch.Tensor]", Any]


@dataclass(slots=True)
class _Running:
    """One module call between its two hooks."""

    module: torch.nn.Module
    name: str
    parent: str | None
    inputs: tuple[Drafted, ...] | None
    kwargs: Mapping[str, Drafted] | None
    parameters: Mapping[str, Drafted] | None
    edges: InputEdges
    start: int
    # Where it was made; none if there will be no record.
    stack: tuple[Frame, ...]
    # Whether Python has begun it, and whether other modules were called inside.
    is_by_python: bool = True
    has_inner: bool = False


class ModuleWatcher:
    """Names modules, records their calls, and tells which module a call is made in.

    Args:
        session: where the records go.
        names: what modules are called.
        is_recording: False only follows the hierarchy, for the calls inside.
    """

    def __init__(self, session: Session, names: ModuleNames, *, is_recording: bool) -> None:
        self._session = session
        self._is_recording = is_recording
        self._names = names
        # Each thread that calls modules is in modules of its own.
        self._threads = threading.local()
        self._handles: list[Any] = []
        # Where the hooks of parameters stand, and under which key: themselves.
        self._parameter_hooks: list[tuple[dict[Any, Any], Any]] = []
        # Asked for every call, so they are looked up once.
        self._with_inputs = session.calls.wants_part("forward", "input")
        self._with_outputs = session.calls.wants_part("forward", "output")
        self._with_gradients = session.calls.wants_part("backward", "output")
        # By module: the record that its parameters' gradients are gathered for, and those there.
        self._gradients: dict[str, tuple[str, dict[str, Drafted]]] = {}
        # By what and as what; the ids are those of dicts that are kept above.
        self._hooked: set[tuple[str, str, int]] = set()
        # The same of tensors in the place of parameters. An id is handed out again once its tensor
        # is gone, soon with `functional_call`.
        self._hooked_tensors: dict[tuple[str, str, int], _HookedTensor] = {}
        # Models whose modules without calls have been looked for.
        self._searched: set[str] = set()
        # Modules are called, and backward passes run, in several threads; `close` comes from one.
        self._lock = threading.RLock()
        self._is_closed = False

    def open(self, fast_recorder: Any = None) -> None:
        """Start watching.

        Args:
            fast_recorder: what records the usual calls in compiled code; None: Python does it.
        """
        before, after = (
            (self._before, self._after)
            if fast_recorder is None
            else fast_recorder.watch_modules(self._parts())
        )
        self._handles.append(torch_module.register_module_forward_pre_hook(before))
        self._handles.append(torch_module.register_module_forward_hook(after, always_call=True))

    def _parts(self) -> dict[str, Any]:
        """Return what _modules.c does the same with, by the names that it knows."""
        return {
            "before": self._before,
            "after": self._after,
            "kinds": {},
            "kind_of": _kind_of,
            **self._names.parts(),
            "running_class": _Running,
            "hook_parameters": self._hook_parameters,
        }

    def close(self) -> None:
        """Remove every hook and record the gradients that came in."""
        with self._lock:
            self._is_closed = True
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            for hooks, hook in self._parameter_hooks:
                hooks.pop(hook, None)
            self._parameter_hooks.clear()
            self._hooked.clear()
            self._hooked_tensors.clear()
        self._threads = threading.local()

    def let_go(self, tensor: torch.Tensor) -> None:
        """Take our hooks off a tensor that will be another one; its next use hooks it again."""
        with self._lock:
            hooks: Any = tensor._backward_hooks
            for place, (known, handle) in list(self._hooked_tensors.items()):
                if known() is tensor:
                    del self._hooked_tensors[place]
                    if handle is not None:
                        handle.remove()
            if hooks is None:
                return
            for own, hook in self._parameter_hooks:
                if own is hooks:
                    hooks.pop(hook, None)
            self._searched.clear()
            # These stay the objects that _modules.c knows.
            self._parameter_hooks[:] = [at for at in self._parameter_hooks if at[0] is not hooks]
            self._hooked.difference_update([at for at in self._hooked if at[2] == id(hooks)])
            if not hooks and tensor.is_leaf:
                # It would stay with the tensor, and who hooks that later with what was inside it.
                tensor._backward_hooks = None

    def flush(self) -> None:
        """Record the parameter gradients that did not come in complete."""
        with self._lock:
            for base in list(self._gradients):
                self._add_gradients(base)

    def is_watching(self, module: torch.nn.Module) -> bool:
        """Whether calls of this module are followed now."""
        if self._session.is_paused:
            return False
        return type(module).__name__ != _COMPILED_CLASS or not is_compiled_wrapper(module)

    def follow_parameters_inside(self, module: torch.nn.Module) -> None:
        """Record the parameters' gradients of the modules in one whose calls cannot be seen."""
        config = self._session.config
        if not self._is_recording or not self.is_watching(module) or config.list or config.scope:
            return
        for inner in module.modules():
            path = self._names.known(inner)
            if path is not None and inner is not module:
                self._hook_parameters(_parameters_of(inner), path, type(inner).__name__)

    def follow_uncalled(self, module: torch.nn.Module) -> None:
        """Record gradients of the parameters in a model that modules without calls hold.

        Such are the parameters in an nn.ParameterList, and those of `out_proj` in an
        nn.MultiheadAttention: the modules that hold them are never called.
        """
        config = self._session.config
        name = module_text(self._names.path_of(module), type(module).__name__)
        if not self._is_recording or name in self._searched or config.list or config.scope:
            return
        self._searched.add(name)
        with self._lock:
            hooked = {at[2] for at in (*self._hooked, *self._hooked_tensors)}
            called = {at[0] for at in (*self._hooked, *self._hooked_tensors)}
        for _, inner in module.named_modules():
            path, class_name = self._names.path_of(inner), type(inner).__name__
            if not inner._parameters or _gradients_of(path, class_name) in called:
                continue
            # What belongs to two modules has the name of the one that was called.
            own = {
                key: parameter
                for key, parameter in _parameters_of(inner).items()
                if id(parameter) not in hooked and id(parameter._backward_hooks) not in hooked
            }
            if own:
                self._hook_parameters(own, path, class_name)

    @property
    def _running(self) -> list[_Running]:
        running: list[_Running] = self._threads.__dict__.setdefault("running", [])
        return running

    @property
    def current(self) -> str | None:
        """The name of the module call that is running."""
        running = self._threads.__dict__.get("running")
        return running[-1].name if running else None

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not self.is_watching(module):
            return
        try:
            kwargs = _keywords_beside(args, sys._getframe(1))
            with torch._C.DisableTorchFunction():
                self._enter(module, args, kwargs)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail(f"the call of a {type(module).__name__}", err)

    def _enter(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        path = self._names.path_of(module)
        class_name = type(module).__name__
        session = self._session
        recorder = session.recorder
        text = module_text(path, class_name)
        # As `ModuleCall` has it, for which a step has no time.
        name = f"{text}.forward.{recorder.next_number(text)}"
        running = self._running
        parent = running[-1].name if running else None
        if running:
            running[-1].has_inner = True
        own = _parameters_of(module)
        inputs = named = parameters = None
        stack: tuple[Frame, ...] = ()
        if session.wants(name, "forward") and self._is_recording:
            if self._with_inputs:
                inputs = recorder.draft_all(args, f"{name}.input")
                named = recorder.draft_named(kwargs, f"{name}.kwargs") if kwargs else {}
            parameters = recorder.draft_named(own, f"{name}.parameters") if own else {}
            stack = session.read_stack()
            recorder.begin(name, stack)
            if own:
                self._hook_parameters(own, path, class_name)
        elif self._is_recording and session.wants_backward_alone(name):
            parameters = {}
            self._hook_parameters(own, path, class_name)
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(kwargs)
        edges = input_edges(tensors)
        start = next_sequence_number()
        running.append(
            _Running(module, name, parent, inputs, named, parameters, edges, start, stack)
        )

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self.is_watching(module):
            return
        # An exception may have passed over the second hooks of modules inside this one; and one of
        # our own over the first hook of this.
        inside = self._running
        if not any(running.module is module for running in inside):
            return
        while inside[-1].module is not module:
            inside.pop()
        running = inside.pop()
        try:
            if self._is_recording:
                with torch._C.DisableTorchFunction():
                    self._follow_tensors(running)
                    self._record(running, output)
                    if not inside and module._modules:
                        self.follow_uncalled(module)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail(running.name, err)
        self._session.leave(running.name, running.parent)

    def _record(self, running: _Running, output: Any) -> None:
        name = running.name
        session = self._session
        values = output if isinstance(output, tuple) else (output,)
        if session.wants(name, "forward"):
            recorder = session.recorder
            recorder.add(
                name,
                inputs=running.inputs,
                kwargs=running.kwargs,
                outputs=recorder.draft_all(values, f"{name}.output")
                if self._with_outputs
                else None,
                parameters=running.parameters,
                is_recompute=session.recomputation.is_running(),
                stack=running.stack or session.read_stack(),
                parent=running.parent,
            )
        session.watch_gradients(
            name,
            running.edges,
            running.start,
            tensors_in(output),
            running.parent,
            is_sealed=is_sealed(running.module),
            is_late=running.has_inner,
        )

    def _hook_parameters(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        path: str,
        class_name: str,
        *,
        are_used: bool = False,
    ) -> None:
        """Hook parameters and, once they are used, tensors that were put in the place of some.

        A view that was written into through another one gets a new node when it is used: to have it
        made before would give it another place in the order of the backward pass.
        """
        if not self._with_gradients:
            return
        wanted = [(key, p) for key, p in parameters.items() if p.requires_grad]
        base = _gradients_of(path, class_name)
        with self._lock:
            if self._is_closed:
                # While this call was looked at: nobody would take the hooks away again.
                return
            for key, parameter in wanted:
                if type(parameter) is not torch.nn.Parameter:
                    if are_used or parameter.is_leaf:
                        self._hook_tensor(parameter, base, key, len(wanted))
                    continue
                # What `register_hook` does for a leaf, at a third of its cost.
                hooks: Any = parameter._backward_hooks
                if hooks is None:
                    hooks = parameter._backward_hooks = OrderedDict()
                place = (base, key, id(hooks))
                if place not in self._hooked:
                    self._hooked.add(place)
                    hook = functools.partial(self._take_gradient, base, key, len(wanted))
                    self._parameter_hooks.append((hooks, hook))
                    hooks[hook] = hook

    def _hook_tensor(self, tensor: torch.Tensor, base: str, key: str, count: int) -> None:
        place = (base, key, id(tensor))
        known = self._hooked_tensors.get(place)
        if known is None or known[0]() is not tensor:
            handle = None
            # To hook one that still lacks its node, as nobody has used it, ends the process.
            if tensor.grad_fn is not None or tensor.is_leaf:
                hook = functools.partial(self._take_gradient, base, key, count)
                handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)
            self._hooked_tensors[place] = (weakref.ref(tensor), handle)

    def _follow_tensors(self, running: _Running) -> None:
        """Hook the tensors that stood in the place of parameters, and those that FSDP put there."""
        module = running.module
        is_gathered = is_sharded(type(module))
        if is_gathered:
            # FSDP writes into them without raising their version.
            self._session.recorder.forget_tensors()
        if running.parameters is None:
            return
        own = _parameters_of(module)
        if is_gathered or any(type(tensor) is not torch.nn.Parameter for tensor in own.values()):
            path = self._names.path_of(module)
            self._hook_parameters(own, path, type(module).__name__, are_used=True)

    def _add_gradients(self, base: str) -> None:
        # A signal's handler that stops the capture takes them away from who is at it.
        if (gathered := self._gradients.pop(base, None)) is not None:
            name, arrived = gathered
            self._session.recorder.add(name, parameters=arrived)

    def _take_gradient(self, base: str, key: str, count: int, gradient: torch.Tensor) -> None:
        """Take the gradient of one of a module's parameters, which are so many."""
        recorder = self._session.recorder
        try:
            with self._lock, torch._C.DisableTorchFunction():
                gathered = self._gradients.get(base)
                if gathered is not None and key in gathered[1]:
                    # The next backward pass has come, and the last lacked some parameters.
                    self._add_gradients(base)
                    gathered = None
                if gathered is None:
                    number = recorder.next_number(base)
                    gathered = (f"{base}.{number}" if number else base, {})
                    self._gradients[base] = gathered
                name, arrived = gathered
                arrived[key] = recorder.draft(gradient, f"{name}.{key}")
                if len(arrived) == count:
                    self._add_gradients(base)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(base, err)


def _keywords_beside(args: tuple[Any, ...], caller: FrameType) -> dict[str, Any]:
    """Return the keyword arguments of the call that a hook is told of.

    torch hands them to hooks of one module, and to none that hears of all modules before they run.
    """
    given = caller.f_locals
    kwargs = given.get("kwargs")
    return kwargs if type(kwargs) is dict and given.get("args") is args else {}


@functools.lru_cache(maxsize=4096)
def _gradients_of(path: str, class_name: str) -> str:
    """Return the name of the gradients of a module's parameters, which every step asks for."""
    return str(ParameterGradients(path, class_name))


def _parameters_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return a module's own parameters."""
    # What `named_parameters(recurse=False)` gives, at a tenth of its time.
    return {key: value for key, value in module._parameters.items() if value is not None}
