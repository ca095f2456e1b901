"""Collectives: see the calls of torch.distributed, and read their results once they are there.

    call ─► inputs ─► the call itself ─┬─ complete: outputs ─► record
                                       └─ a Work: wait() returns ─► outputs ─► record

Only some of these functions tell a TorchFunctionMode of their calls, only in new torch, and with
rearranged arguments. So this watcher exchanges the code inside the functions while it is open. The
functions stay the objects they are: a name that was imported long before is seen, and torch's own
comparisons, such as `op is isend` in `batch_isend_irecv`, hold. What a function calls inside itself
belongs to its call and is not recorded again.

A Work is handed on untouched. While it is open, the watcher listens at the methods of its class:
the output is read when `wait` returns, when `is_completed` says so, or when its future is done.

Not seen: what is sent without one of these functions, as by DistributedDataParallel's reducer (C++)
and by functional collectives, DTensor's or the user's (`torch.ops._c10d_functional`); objects
(`all_gather_object` and its like), for they hold no tensors; barriers; the inside of a compiled
region; a vendor's function that is not written in Python. The output of a Work whose end nobody
asks for is read when the session closes, if it is complete by then, and is left out if not.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe.capture.code_patch import CodePatch, Handler, hide_from_dynamo
from tensorprobe.capture.describe import Drafted
from tensorprobe.names import ApiCall
from tensorprobe.records import Frame

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["CollectiveWatcher"]

# Where two names are bound to one function, the first counts. A torch may lack some of them.
_RECORDED = (
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "broadcast",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_single",
    "_all_gather_base",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "all_to_all",
    "all_to_all_single",
)
# These send pickled bytes with the functions above.
_PASSED_OVER = (
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
)
# Who asks one of these hears of the end of a Work or of its future.
_TELLING = ("wait", "is_completed", "done", "get_future")


@dataclass(slots=True)
class _Call:
    """One call, from its inputs until its outputs can be read."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_wanted: bool = False
    inputs: tuple[Drafted, ...] | None = None
    named: Mapping[str, Drafted] | None = None
    defaults: Mapping[str, Drafted] | None = None
    stack: tuple[Frame, ...] = ()
    parent: str | None = None
    is_recompute: bool = False
    # What tells who has sent, where that is known only at the end.
    source: Callable[[], Mapping[str, Any]] | None = None
    # The numbers of the Works that are not complete: a batch has several.
    missing: set[int] = field(default_factory=set)
    is_over: bool = False
    keys: list[int] = field(default_factory=list)
    # Held while outputs are read, so that who waited for them cannot overwrite them meanwhile.
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(slots=True)
class _Awaited:
    """A Work or its future, and the calls that it ends; with each, which of its Works it is."""

    handle: Any
    calls: list[tuple[_Call, int]] = field(default_factory=list)


class _Thread(threading.local):
    """What one thread is in the middle of."""

    is_inside = False
    coalesced: list[_Call] | None = None


class CollectiveWatcher:
    """Records the calls of torch.distributed between `open` and `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = _Thread()
        self._patches: dict[int, CodePatch] = {}
        self._listening: dict[tuple[type, str], Any] = {}
        self._awaited: dict[int, _Awaited] = {}
        self._is_open = False

    def open(self) -> None:
        """Start watching; a process group may also come later."""
        if not torch.distributed.is_available():
            return
        self._is_open = True
        for name in _RECORDED:
            self._divert(name, functools.partial(self._watch, name))
        for name in _PASSED_OVER:
            self._divert(name, self._pass_over)
        self._divert("_coalescing_manager", self._watch_coalescing)

    def close(self) -> None:
        """Put back every function and method; record what is complete of the rest."""
        self._is_open = False
        for patch in self._patches.values():
            patch.end()
        self._patches.clear()
        for (owner, method), before in self._listening.items():
            setattr(owner, method, before)
        self._listening.clear()
        for awaited in list(self._awaited.values()):
            for call, _ in awaited.calls:
                with call.lock:
                    if not call.is_over:
                        self._finish(call, is_complete=self._is_complete(call))
        self._awaited.clear()

    def step_aside(self) -> None:
        """Let every function be itself, until `step_back`: a compiler looks inside them."""
        for patch in self._patches.values():
            patch.end()

    def step_back(self) -> None:
        """Watch again."""
        for patch in self._patches.values():
            patch.begin()

    # --- calls -------------------------------------------------------------------------------

    def _divert(self, name: str, handler: Handler) -> None:
        for space in (torch.distributed, torch.distributed.distributed_c10d):
            function = getattr(space, name, None)
            if isinstance(function, FunctionType) and id(function) not in self._patches:
                self._patches[id(function)] = CodePatch(function, handler)

    def _watch(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._thread.is_inside or self._session.is_quiet:
            return function(*args, **kwargs)
        call = self._begin(name, function, args, kwargs)
        try:
            result = self._pass_over(function, args, kwargs)
        except Exception:
            if self._is_open:
                self._finish(call, is_complete=False)
            raise
        finally:
            self._leave(call)
        if name in _RECEIVING:
            call.source = functools.partial(_source_of, name, function, args, kwargs, result)
        if self._thread.coalesced is None:
            self._follow(call, result)
        else:
            # Nothing is sent before the block ends.
            self._thread.coalesced.append(call)
        return result

    def _pass_over(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        was_inside, self._thread.is_inside = self._thread.is_inside, True
        try:
            return function(*args, **kwargs)
        finally:
            self._thread.is_inside = was_inside

    def _watch_coalescing(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        block = function(*args, **kwargs)
        return block if self._thread.is_inside else self._follow_coalescing(block)

    @contextlib.contextmanager
    def _follow_coalescing(self, block: Any) -> Iterator[Any]:
        calls: list[_Call] = []
        with block as manager:
            before, self._thread.coalesced = self._thread.coalesced, calls
            try:
                yield manager
            finally:
                self._thread.coalesced = before
        for call in calls:
            self._follow(call, manager.works)

    def _begin(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Call:
        session, recorder = self._session, self._session.recorder
        number = recorder.next_number(f"Distributed.{name}")
        call = _Call(str(ApiCall("Distributed", name, number, "forward")), args, kwargs)
        try:
            with torch._C.DisableTorchFunction():
                is_left_out = session.apis.leaves_out(f"Distributed.{name}")
                call.is_wanted = session.wants(call.name, "forward") and not is_left_out
                call.parent = session.current_module
                if call.is_wanted:
                    if session.calls.wants_part("forward", "input"):
                        call.inputs = recorder.draft_all(args, f"{call.name}.input")
                        call.named = recorder.draft_named(kwargs, f"{call.name}.kwargs")
                    call.defaults = recorder.draft_named(
                        _defaults_of(name, function, args, kwargs), f"{call.name}.defaults"
                    )
                    call.stack = session.read_stack()
                    recorder.begin(call.name, call.stack)
                    call.is_recompute = session.recomputation.is_running()
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(call.name, err)
        return call

    def _leave(self, call: _Call) -> None:
        try:
            self._session.leave(call.name, call.parent)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail(call.name, err)

    def _finish(self, call: _Call, *, is_complete: bool = True) -> None:
        """Record a call; its outputs are read only if they are complete."""
        session, recorder = self._session, self._session.recorder
        call.is_over = True
        try:
            # A backend writes into tensors without raising their version.
            recorder.forget_tensors()
            if not call.is_wanted:
                return
            with torch._C.DisableTorchFunction():
                outputs = None
                if is_complete and session.calls.wants_part("forward", "output"):
                    # As the older tools have it: not what is returned, but what was written into.
                    values = (*call.args, *call.kwargs.values())
                    outputs = recorder.draft_all(values, f"{call.name}.output")
                if is_complete and call.source is not None:
                    source = recorder.draft_named(call.source(), f"{call.name}.defaults")
                    call.defaults = {**(call.defaults or {}), **source}
                recorder.add(
                    call.name,
                    inputs=call.inputs,
                    kwargs=call.named,
                    outputs=outputs,
                    is_recompute=call.is_recompute,
                    defaults=call.defaults,
                    stack=call.stack,
                    parent=call.parent,
                )
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(call.name, err)

    # --- Works and their futures -------------------------------------------------------------

    def _follow(self, call: _Call, result: Any) -> None:
        """Record a call that is complete; wait with the others until their last Work is."""
        if not self._is_open:
            return
        results = result if isinstance(result, (list, tuple)) else (result,)
        works = [work for work in results if hasattr(type(work), "wait")]
        if not works:
            self._finish(call)
            return
        call.missing.update(range(len(works)))
        try:
            for number, work in enumerate(works):
                self._await(work, call, number)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail(call.name, err)

    def _await(self, handle: Any, call: _Call, number: int) -> None:
        awaited = self._awaited.setdefault(id(handle), _Awaited(handle))
        awaited.calls.append((call, number))
        call.keys.append(id(handle))
        for method in _TELLING:
            self._listen(type(handle), method)
        if hasattr(handle, "add_done_callback"):
            # The end of a future may be heard in C++ alone, as by DistributedDataParallel.
            handle.add_done_callback(functools.partial(self._on_done, call, number))

    def _listen(self, kind: type, method: str) -> None:
        owner = next((base for base in kind.__mro__ if method in vars(base)), None)
        if owner is None or (owner, method) in self._listening:
            return
        function = getattr(owner, method)

        @hide_from_dynamo
        @functools.wraps(function)
        def listening(handle: Any, *args: Any, **kwargs: Any) -> Any:
            answer = function(handle, *args, **kwargs)
            awaited = self._awaited.get(id(handle))
            if awaited is not None:
                for call, number in list(awaited.calls):
                    self._hear(method, answer, call, number)
            return answer

        self._listening[(owner, method)] = vars(owner)[method]
        setattr(owner, method, listening)

    def _hear(self, method: str, answer: Any, call: _Call, number: int) -> None:
        try:
            if method == "get_future":
                self._await(answer, call, number)
            elif method == "wait" or answer is True:
                self._arrive(call, number)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            self._session.recorder.fail(call.name, err)

    def _on_done(self, call: _Call, number: int, future: Any) -> None:
        try:
            future.value()
        except Exception:  # noqa: BLE001 - whoever waits for the future is told of its failure
            return
        self._arrive(call, number)

    def _arrive(self, call: _Call, number: int) -> None:
        with call.lock:
            call.missing.discard(number)
            if call.missing or call.is_over:
                return
            self._finish(call)
            for key in call.keys:
                self._awaited.pop(key, None)

    def _is_complete(self, call: _Call) -> bool:
        for key in call.keys:
            awaited = self._awaited[key]
            handle = awaited.handle
            try:
                ask = getattr(handle, "is_completed", None) or handle.done
                if ask():
                    # Returns at once, and tells whether it failed.
                    handle.wait()
                    call.missing -= {number for other, number in awaited.calls if other is call}
            except Exception:  # noqa: BLE001 - whoever waits for the Work is told of its failure
                return False
        return not call.missing


# What says between whom something goes, and what is done to it.
_TELLING_ARGUMENTS = ("group", "op", "src", "dst")
# Rank 0 is the root where nobody names one.
_ROOTED = {"scatter": "src", "gather": "dst"}
# They take what anybody sends where nobody names a source.
_RECEIVING = ("recv", "irecv")


def _defaults_of(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return what a collective takes because its caller said nothing of it, by its name."""
    try:
        signature = _signature_of(name, function)
        given = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        # The call itself will tell its caller.
        return {}
    found: dict[str, Any] = {}
    for key in _TELLING_ARGUMENTS:
        parameter = signature.parameters.get(key)
        if parameter is None or given.get(key) is not None:
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        if default is None and key == "group" and torch.distributed.is_initialized():
            default = torch.distributed.group.WORLD
        elif default is None and key == _ROOTED.get(name) and given.get(f"group_{key}") is None:
            default = 0
        if default is not None:
            found[key] = default
    return found


def _source_of(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> dict[str, int]:
    """Return who has sent what a call received, by its rank, if the caller named nobody."""
    given = _signature_of(name, function).bind_partial(*args, **kwargs).arguments
    if given.get("src") is not None or given.get("group_src") is not None:
        return {}
    if not isinstance(result, int):
        if not hasattr(result, "_source_rank"):
            return {}
        group: Any = given.get("group") or torch.distributed.group.WORLD
        result = torch.distributed.get_global_rank(group, result._source_rank())
    # A rank that is not in the group receives nothing.
    return {"src": result} if result >= 0 else {}


def _signature_of(name: str, function: Callable[..., Any]) -> inspect.Signature:
    # The function inside torch's wrapper knows its arguments; without one, `function` does.
    public = getattr(torch.distributed, name, function)
    inner = inspect.unwrap(public)
    return inspect.signature(function if inner is public else inner)
