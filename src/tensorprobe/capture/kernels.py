"""L2: see every ATen operator through a TorchDispatchMode, and tell which API call it belongs to.

    API call ─► follow_call: its name, and a mark on the autograd nodes that it makes
    operator ─► its API call (forward), or the mark of the node that runs it (backward) ─► record

The API calls are followed but not recorded; with a `list` only the operators of the calls that it
names are. In construct.json the parent of an operator is its API call.

What runs in a backward pass is `backward`, recomputation too. The sum of gradients that reach a
tensor from several sides belongs to the call whose backward came last.

Not seen: what one operator launches inside itself, collectives, the inside of a compiled region,
and, with a `list`, operators that no API call stands for, as in C++ code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch

from tensorprobe.capture.apis import Api
from tensorprobe.capture.code_patch import hide_from_dynamo
from tensorprobe.capture.describe import Drafted, tensors_in
from tensorprobe.capture.graph_edges import is_new, next_sequence_number
from tensorprobe.capture.operator_mode import LEFT_OUT_SPACES, OperatorMode, may_write
from tensorprobe.capture.written import written_tensors
from tensorprobe.names import ApiCall, Direction
from tensorprobe.records import Frame

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["KernelWatcher"]

# The parts of the tool that read tensors; other parts call operators on behalf of the user.
_READING = (
    str(Path(__file__).parent.with_name("summary")),
    str(Path(__file__).with_name("recorder.py")),
    str(Path(__file__).with_name("subclasses.py")),
)
_TORCH_FOLDER = Path(torch.__file__).parent
# What hides the handler of a mode from the compiler stands between it and an operator's caller.
_BETWEEN = frozenset(
    (
        str(_TORCH_FOLDER / "_compile.py"),
        str(_TORCH_FOLDER / "_dynamo" / "eval_frame.py"),
        hide_from_dynamo.__code__.co_filename,
    )
)
_MARK = "tensorprobe call"
_SIDES: tuple[Literal["input"], Literal["output"]] = ("input", "output")


class _Thread(threading.local):
    """The API call that one thread is in, and whether its operators are recorded."""

    call: tuple[str, bool] | None = None


class KernelWatcher(OperatorMode):  # type: ignore[no-untyped-call]
    """Records the operators that run while it is entered."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        # Whether it is over, though torch may have the mode on until a backward pass is.
        self.is_retired = False
        # What autograd keeps of each node that carries a mark; it does not keep the node.
        self._marked: list[dict[Any, Any]] = []
        self._thread = _Thread()
        # Whether the operators of a call's backward are recorded.
        self._is_wanted: dict[str, bool] = {}

    def retire(self) -> None:
        """Record nothing more, and take the marks off: the graph may live on."""
        self.is_retired = True
        while self._marked:
            self._marked.pop().pop(_MARK, None)

    def follow_call(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an API call; the operators inside, and those of its backward, are its own."""
        session, recorder = self._session, self._session.recorder
        number = recorder.next_number(f"{api.api_type}.{api.api_name}")
        name = str(ApiCall(api.api_type, api.api_name, number, "forward"))
        backward = str(ApiCall(api.api_type, api.api_name, number, "backward"))
        start = next_sequence_number()
        around = self._thread.call
        try:
            self._thread.call = (name, session.wants(name, "forward"))
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        try:
            result = function(*args, **kwargs)
        finally:
            self._thread.call = around
        try:
            session.calls.leave(name)
            self._mark_nodes(_roots(result, (args, kwargs), start), start, backward)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(name, err)
        return result

    def _mark_nodes(self, roots: list[Any], start: int, name: str) -> None:
        """Write a call's name on the nodes that it made."""
        pending = [node for node in roots if is_new(node, start)]
        while pending:
            node = pending.pop()
            metadata = node.metadata
            if _MARK not in metadata:
                metadata[_MARK] = name
                self._marked.append(metadata)
                pending.extend(child for child, _ in node.next_functions if is_new(child, start))

    # torch 2.15 compiled us inside a compiled data parallel model, though it had hidden us, too.
    @hide_from_dynamo
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_retired:
            return func(*args, **kwargs)
        session, recorder = self._session, self._session.recorder
        call = inputs = named = None
        parent = None
        stack: tuple[Frame, ...] = ()
        try:
            parent, is_wanted = self._find_call()
            if is_wanted and not _is_own_doing(sys._getframe(1)):
                call = self._name(func)
            if call is not None and session.calls.wants_part(call.direction, "input"):
                inputs = recorder.draft_all(args, f"{call}.input")
                named = recorder.draft_named(kwargs, f"{call}.kwargs")
            if call is not None:
                stack = session.read_stack() if call.direction == "forward" else ()
                recorder.begin(str(call), stack)
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(str(func), err)
        try:
            result = func(*args, **kwargs)
        except Exception:
            if call is not None and inputs is not None:
                self._add(call, parent, inputs, named, None, stack)
            raise
        finally:
            if may_write(func):
                # The version is raised after the operator, above this mode, or never.
                recorder.forget_tensors()
        if call is not None:
            values = result if isinstance(result, (tuple, list)) else (result,)
            self._add(call, parent, inputs, named, values, stack)
        return result

    def _add(
        self,
        call: ApiCall,
        parent: str | None,
        inputs: tuple[Drafted, ...] | None,
        named: Mapping[str, Drafted] | None,
        values: Sequence[Any] | None,
        stack: tuple[Frame, ...],
    ) -> None:
        """Record an operator and what it returned; None if it raised."""
        session, recorder = self._session, self._session.recorder
        try:
            outputs = None
            if values is not None and session.calls.wants_part(call.direction, "output"):
                outputs = recorder.draft_all(values, f"{call}.output")
            recorder.add(
                str(call),
                inputs=inputs,
                kwargs=named,
                outputs=outputs,
                is_recompute=False if call.direction == "forward" else None,
                stack=stack,
                parent=parent,
            )
        except Exception as err:  # noqa: BLE001 - counted and told by the recorder
            recorder.fail(str(call), err)

    def _find_call(self) -> tuple[str | None, bool]:
        """Return the API call that an operator belongs to, and whether that is recorded."""
        if self._thread.call is not None:
            return self._thread.call
        session = self._session
        name = _marked_call()
        if name is None:
            return None, not (session.config.list or session.config.scope or session.is_paused)
        if name not in self._is_wanted:
            self._is_wanted[name] = session.wants(name, "backward")
        return name, self._is_wanted[name]

    def _name(self, func: Any) -> ApiCall | None:
        """Return the name of an operator's call, or None if it is not to be recorded."""
        is_backward = torch._C._current_graph_task_id() != -1
        direction: Direction = "backward" if is_backward else "forward"
        session = self._session
        api = _api_of(func)
        if api is None or not any(session.calls.wants_part(direction, side) for side in _SIDES):
            return None
        number = session.recorder.next_number(f"{api.api_type}.{api.api_name}.{direction}")
        return ApiCall(api.api_type, api.api_name, number, direction)


def _api_of(func: Any) -> Api | None:
    """Name an operator: `Aten.add.Tensor`, and the default overload by the operator alone."""
    if not isinstance(func, torch._ops.OpOverload):
        return Api("Custom", f"higher_order.{func.name()}")
    space, _, name = func._schema.name.partition("::")
    if space in LEFT_OUT_SPACES:
        return None
    if func._schema.overload_name not in ("", "default"):
        name = f"{name}.{func._schema.overload_name}"
    if space == "aten":
        return Api("Aten", name)
    return Api("NPU", name) if space == "npu" else Api("Custom", f"{space}.{name}")


def _is_own_doing(frame: FrameType | None) -> bool:
    """Whether the tool itself calls the operator, to read a value that the user saves."""
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_READING)


def _roots(result: Any, given: Any, start: int) -> list[Any]:
    """Return the nodes that the results of a call come from, or what it wrote if it has none."""
    roots = []
    given_tensors = tensors_in(given)
    given_ids = {id(tensor) for tensor in given_tensors}
    for tensor in tensors_in(result) or written_tensors(given_tensors, start):
        if not tensor.requires_grad:
            continue
        base = tensor._base
        if base is not None and tensor._version:
            # Asked for its node, a view that was written into gets a new one: too early, which
            # changes the order of the backward pass. The base knows of the writing.
            roots.append(base.grad_fn)
            if id(tensor) in given_ids or is_new(base.grad_fn, start):
                continue
        roots.append(tensor.grad_fn)
    return roots


def _marked_call() -> str | None:
    """Return the call whose backward is running."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else node.metadata.get(_MARK)
