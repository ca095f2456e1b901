"""torch.compile: let compiled code run as it is, and record what goes into it and comes out.

    a compiled callable begins ─► step aside: function mode, module hooks, collectives
                               ─► inputs ─► compiled code ─► outputs ─► step back ─► record

Whatever is compiled (a module, a module's call, a function) is heard of while the capture is on,
as it begins and as it ends (compiler_listener). Between the two nothing of us can be seen: Dynamo
would otherwise trace our hooks, guard on our mode, and compile once for the watched run and once
for the other.

A compiled module is recorded as the module that it was made of, under that module's own name; its
parameters' gradients, also of the modules inside, under their usual names. Anything else that is
compiled is one API call, `Torch.compiled.{function}`; so is a module at level L1.

Not seen: calls and modules inside a compiled region, also between its graph breaks; modules that
another thread calls meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from tensorprobe.capture.compiler_listener import CompilerListener
from tensorprobe.capture.describe import Drafted, tensors_in, values_of
from tensorprobe.capture.graph_edges import InputEdges, input_edges, next_sequence_number
from tensorprobe.capture.mode_places import (
    function_modes,
    remove_function_mode,
    set_function_modes,
)
from tensorprobe.capture.modules import ModuleWatcher
from tensorprobe.capture.returned import hear_return
from tensorprobe.names import ApiCall
from tensorprobe.records import Frame

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["CompiledRegions"]

_ASKED = "_has_any_global_hook"
_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl", "__call__")
_HOOK_TABLES = ("_global_forward_pre_hooks", "_global_forward_hooks")
_BACKWARD_HOOK_TABLES = ("_global_backward_pre_hooks", "_global_backward_hooks")
# AccumulateGrad carries the largest number there is.
_NEWEST = (1 << 64) - 1
_NOTICE = (
    "torch.compile is used: what goes into a compiled region and comes out of it is recorded, at "
    "level L0 of modules only; the calls and modules inside it cannot be seen"
)


@dataclass(slots=True)
class _Call:
    """The record of a compiled region as one API call, until its result is there."""

    name: str
    is_wanted: bool
    inputs: tuple[Drafted, ...] | None
    kwargs: Mapping[str, Drafted] | None
    edges: InputEdges | None
    parent: str | None
    stack: tuple[Frame, ...]


@dataclass(slots=True)
class _Region:
    """One compiled callable that is running in a thread."""

    frame: FrameType
    is_aside: bool = False
    # The modes as they were, ours among them.
    modes: tuple[Any, ...] = ()
    module: torch.nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    start: int = 0
    call: _Call | None = None
    # What was being handled when it began: anything else at its end is its own exception.
    error: BaseException | None = None


class _Thread(threading.local):
    region: _Region | None = None


class CompiledRegions:
    """Follows compiled callables between `open` and `close`.

    Args:
        session: where the records go.
        mode: the function mode that steps aside, if there is one.
        collectives: the same for torch.distributed.
    """

    def __init__(self, session: Session, mode: Any, collectives: Any) -> None:
        self._session = session
        self._mode = mode
        self._collectives = collectives
        self._thread = _Thread()
        self._lock = threading.Lock()
        # How many threads are in a compiled region, and all hooks as they were before the first.
        self._aside = 0
        self._tables: dict[str, dict[int, Any]] = {}
        self._with_kwargs: set[int] = set()
        self._listener = CompilerListener(self._hear, self._on_compiler)
        self._undo: list[tuple[ModuleType, str, Any]] = []
        self._handles: list[Any] = []
        self._names_result = False

    def open(self) -> None:
        """Start to listen, as soon as there is a compiler."""
        self._listener.open()

    def close(self) -> None:
        """Undo everything."""
        self._listener.close()
        region, self._thread.region = self._thread.region, None
        if region is not None:
            self._step_back(region)
        with self._lock:
            if self._aside:
                # Another thread is still in a compiled region; it has nothing to come back to.
                self._aside = 0
                self._put_hooks_back()
        for space, name, before in reversed(self._undo):
            setattr(space, name, before)
        self._undo.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # --- listening to the compiler -----------------------------------------------------------

    def _on_compiler(self, code: CodeType) -> None:
        self._names_result = "result" in code.co_varnames
        # A compiled module warns of global hooks; ours step aside, so they are no reason.
        before = getattr(torch_module, _ASKED, None)
        if before is not None:
            self._undo.append((torch_module, _ASKED, before))
            setattr(torch_module, _ASKED, _has_hooks_of_others)

    def _hear(self, frame: FrameType) -> None:
        """Follow one of the wrapper's two turns, before the compiled code and after it."""
        try:
            region = self._thread.region
            if region is not None and region.frame is not frame:
                if _is_running(region.frame):
                    # Compiled code that calls compiled code.
                    return
                # It went back without a second turn, as while a graph is exported.
                self._thread.region = None
                self._step_back(region)
                region = None
            if region is None:
                self._thread.region = self._enter(frame)
            else:
                self._thread.region = None
                self._finish(region)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail("a compiled region", err)

    # --- one region --------------------------------------------------------------------------

    def _enter(self, frame: FrameType) -> _Region:
        region = _Region(frame, error=sys.exc_info()[1])
        if _is_tracing() or _is_eager(frame):
            return region
        self._step_aside(region)
        try:
            with torch._C.DisableTorchFunction():
                self._begin(region, dict(frame.f_locals))
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail("a compiled region", err)
        return region

    def _begin(self, region: _Region, given: dict[str, Any]) -> None:
        session = self._session
        args, kwargs = given["args"], given["kwargs"]
        owner, args, name = _what_runs(given["fn"], args)
        if owner is not None and name == "forward":
            # Its call is seen; what was compiled is what it calls.
            name = type(owner).__name__
        else:
            region.module = owner
        region.args, region.kwargs = args, kwargs
        region.start = next_sequence_number()
        if not session.is_paused:
            session.tell_once(_NOTICE)
        for hook in self._tables["_global_forward_pre_hooks"].values():
            watcher = getattr(hook, "__self__", None)
            if isinstance(watcher, ModuleWatcher):
                if region.module is not None:
                    hook(region.module, args)
                if owner is not None:
                    watcher.follow_parameters_inside(owner)
        is_module = region.module is not None and session.config.level == "mix"
        if region.modes and not is_module and not session.is_quiet:
            region.call = self._begin_call(name, args, kwargs)

    def _begin_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        session, recorder = self._session, self._session.recorder
        if session.config.level not in ("L1", "mix"):
            return None
        api_name = f"compiled.{name}"
        number = recorder.next_number(f"Torch.{api_name}")
        full = str(ApiCall("Torch", api_name, number, "forward"))
        is_wanted = session.wants(full, "forward")
        inputs = named = None
        if is_wanted and session.calls.wants_part("forward", "input"):
            inputs = recorder.draft_all(args, f"{full}.input")
            named = recorder.draft_named(kwargs, f"{full}.kwargs")
        edges = None
        if torch.is_grad_enabled():
            edges = input_edges(tensors_in((args, tuple(kwargs.values()))))
        stack = session.read_stack() if is_wanted else ()
        if is_wanted:
            recorder.begin(full, stack)
        return _Call(full, is_wanted, inputs, named, edges, session.current_module, stack)

    def _finish(self, region: _Region) -> None:
        """End a region on its second turn, or as soon as its result can be had."""
        if self._names_result:
            given = region.frame.f_locals
            self._leave(region, given.get("result"), is_there="result" in given)
        elif not region.is_aside or sys.exc_info()[1] is not region.error:
            self._leave(region, None, is_there=False)
        elif not hear_return(
            region.frame, lambda result, is_there: self._leave(region, result, is_there=is_there)
        ):
            self._leave(region, None, is_there=None)

    def _leave(self, region: _Region, result: Any, *, is_there: bool | None) -> None:
        """Record a region and step back; `is_there` is None if it is not known what it returned."""
        try:
            if region.is_aside:
                with torch._C.DisableTorchFunction():
                    self._end(region, result, is_there=is_there)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail("a compiled region", err)
        finally:
            self._step_back(region)

    def _end(self, region: _Region, result: Any, *, is_there: bool | None) -> None:
        # Compiled code writes into tensors without raising their version.
        self._session.recorder.forget_tensors()
        self._follow_backward(region, tensors_in(result))
        if region.call is not None:
            self._end_call(region.call, region.start, result, is_there=is_there)
        if region.module is not None:
            for key, hook in self._tables["_global_forward_hooks"].items():
                if not isinstance(getattr(hook, "__self__", None), ModuleWatcher):
                    continue
                if key in self._with_kwargs:
                    hook(region.module, region.args, region.kwargs, result)
                else:
                    hook(region.module, region.args, result)

    def _end_call(self, call: _Call, start: int, result: Any, *, is_there: bool | None) -> None:
        session, recorder = self._session, self._session.recorder
        try:
            if call.is_wanted:
                outputs = None
                if is_there and session.calls.wants_part("forward", "output"):
                    values = values_of(result)
                    outputs = recorder.draft_all(values, f"{call.name}.output")
                recorder.add(
                    call.name,
                    inputs=call.inputs,
                    kwargs=call.kwargs,
                    outputs=outputs,
                    is_recompute=session.recomputation.is_running(),
                    stack=call.stack,
                    parent=call.parent,
                )
            if call.edges is not None:
                outputs_ = tensors_in(result)
                session.watch_gradients(call.name, call.edges, start, outputs_, call.parent)
        finally:
            session.leave(call.name, call.parent)

    # --- stepping aside ----------------------------------------------------------------------

    def _step_aside(self, region: _Region) -> None:
        region.modes = _take_mode_out(self._mode)
        region.is_aside = True
        with self._lock:
            self._aside += 1
            if self._aside > 1:
                return
            for name in _HOOK_TABLES:
                table = getattr(torch_module, name)
                self._tables[name] = dict(table)
                for key, hook in self._tables[name].items():
                    if _is_ours(hook):
                        del table[key]
            self._with_kwargs = set(
                getattr(torch_module, "_global_forward_hooks_with_kwargs", None) or ()
            )
            if self._collectives is not None:
                self._collectives.step_aside()

    def _step_back(self, region: _Region) -> None:
        if not region.is_aside:
            return
        region.is_aside = False
        if region.modes:
            _put_mode_back(self._mode, region.modes)
        with self._lock:
            if not self._aside:
                return
            self._aside -= 1
            if not self._aside:
                self._put_hooks_back()

    def _put_hooks_back(self) -> None:
        for name, before in self._tables.items():
            table = getattr(torch_module, name)
            now = dict(table)
            table.clear()
            # In the order that they had; others may have come and gone meanwhile.
            table.update((k, hook) for k, hook in before.items() if k in now or _is_ours(hook))
            table.update(now)
        self._tables.clear()
        if self._collectives is not None:
            self._collectives.step_back()

    def _follow_backward(self, region: _Region, outputs: list[torch.Tensor]) -> None:
        """Step aside also in the compiled backward of a region."""
        if self._mode is None:
            return
        pending = [tensor.grad_fn for tensor in outputs if tensor.requires_grad]
        seen = set(pending)
        while pending:
            node = pending.pop()
            if node is None or not region.start <= node._sequence_nr() < _NEWEST:
                continue
            if hasattr(getattr(node, "_forward_cls", None), "compiled_bw"):
                self._handles.append(node.register_prehook(self._before_backward))
            for child, _ in node.next_functions:
                if child not in seen:
                    seen.add(child)
                    pending.append(child)

    def _before_backward(self, _: Any) -> None:
        # The engine gives each node the modes that the pass began with, so they come back.
        _take_mode_out(self._mode)


def _is_tracing() -> bool:
    """Whether Dynamo is at work on a graph, so that what runs is not the program."""
    context = torch._guards.TracingContext
    # torch 2.1 has one function for this, 2.2 and later another.
    return (context.try_get() if hasattr(context, "try_get") else context.get()) is not None


def _is_eager(frame: FrameType) -> bool:
    """Whether the user has asked that nothing be compiled for now: then all of it can be seen."""
    if frame.f_locals.get("callback", frame) is None:
        # In torch 2.1 what is kept from the compiler goes through the same wrapper.
        return True
    stance = getattr(frame.f_globals.get("_stance"), "stance", None)
    return stance == "force_eager"


def _what_runs(
    function: Any, args: tuple[Any, ...]
) -> tuple[torch.nn.Module | None, tuple[Any, ...], str]:
    """Return the module that is compiled, or None, its arguments, and the name to record.

    The name is `forward` where not the module itself was compiled but its method.
    """
    name = getattr(function, "__name__", type(function).__name__)
    owner = getattr(function, "__self__", None)
    inner = getattr(function, "__wrapped__", None)
    if isinstance(inner, torch.nn.Module):
        # Modules of torch itself stand in a function more.
        return inner, args, type(inner).__name__
    if isinstance(owner, torch.nn.Module):
        if name in _MODULE_CALLS:
            return owner, args, type(owner).__name__
        return owner if name == "forward" else None, args, _as_word(name)
    if name in _MODULE_CALLS and args and isinstance(args[0], torch.nn.Module):
        # A class was compiled.
        return args[0], args[1:], type(args[0]).__name__
    return None, args, _as_word(name)


def _as_word(name: str) -> str:
    """Return a function's name without what a call's name cannot hold; `<lambda>` is a name too."""
    return "".join(c for c in name if c.isalnum() or c == "_") or "function"


def _is_ours(hook: Any) -> bool:
    owner = type(getattr(hook, "__self__", None))
    return owner.__module__.startswith("tensorprobe.")


def _has_hooks_of_others() -> bool:
    tables = (getattr(torch_module, name) for name in (*_HOOK_TABLES, *_BACKWARD_HOOK_TABLES))
    return any(not _is_ours(hook) for table in tables for hook in table.values())


def _is_running(wanted: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame is wanted:
            return True
        frame = frame.f_back
    return False


def _take_mode_out(mode: Any) -> tuple[Any, ...]:
    """Take a mode out of this thread's modes; returns them as they were, or none if it was off."""
    modes = function_modes()
    if mode is None or not any(one is mode for one in modes):
        return ()
    remove_function_mode(mode)
    return tuple(modes)


def _put_mode_back(mode: Any, before: tuple[Any, ...]) -> None:
    modes = function_modes()
    is_same = [id(one) for one in modes] == [id(one) for one in before if one is not mode]
    set_function_modes(list(before) if is_same else [*modes, mode])
