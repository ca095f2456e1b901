"""L1: see every torch API call through a TorchFunctionMode. Nothing is replaced."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import detach_variable

from tensorprobe.capture.apis import Api
from tensorprobe.capture.fast_recorder import note_function
from tensorprobe.capture.operators import is_reflected, operator_at
from tensorprobe.capture.spelling import as_spelled

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["FunctionWatcher"]

# Operators of a tensor and a number that torch hands over in one order.
_COMMUTATIVE = frozenset(("__add__", "__mul__", "__and__", "__or__", "__xor__"))
_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_ENGINE = "_engine_run_backward"
_AUTOGRAD = torch._C.DispatchKey.AutogradOther
_SETS_DATA: frozenset[Any] = frozenset((torch.Tensor.data.__set__,))  # type: ignore[attr-defined]
_TORCH_FOLDER = Path(torch.__file__).parent
_DISTRIBUTED = str(_TORCH_FOLDER / "distributed") + os.sep
_UNPICKLING = torch._utils.__file__
# What a reentrant checkpoint makes the inputs of its second run with.
_CUT_OFF = detach_variable.__code__
# Functions of torch that are written in Python hand their calls over from these.
_BETWEEN = frozenset(
    str(_TORCH_FOLDER / name)
    for name in ("_tensor.py", "functional.py", "nn/functional.py", "overrides.py")
)


_HAND_OVER = torch.overrides.handle_torch_function.__code__
# By the id of their code, which is kept alive here.
_originals: dict[int, tuple[CodeType, FunctionType | None]] = {}


class FunctionWatcher(TorchFunctionMode):
    """Hands every API call that counts to the session."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        # Whether it is over, though torch may have the mode on until a backward pass is.
        self.is_retired = False
        self._is_distributed = (
            torch.distributed.is_available() and torch.distributed.is_initialized()
        )
        backward = self._with_mode_in_engine(torch.autograd.backward)

        def backward_of_tensor(*args: Any, gradient: Any = None, **kwargs: Any) -> Any:
            return backward(*args, grad_tensors=gradient, **kwargs)

        self._passes: dict[Any, Callable[..., Any]] = {
            torch.autograd.backward: backward,
            torch.autograd.grad: self._with_mode_in_engine(torch.autograd.grad),
            torch.Tensor.backward: backward_of_tensor,
        }

    def open_fast_recorder(self, fast_recorder: Any) -> None:
        """Leave the usual calls to compiled code."""
        usual = self._session.apis.usual
        slow, is_distributed = self.__torch_function__, self._is_distributed
        fast_recorder.watch(
            self, slow, usual, self._note, self._as_written, _is_machinery, is_distributed
        )
        # torch asks the object, not its class.
        self.__dict__["__torch_function__"] = fast_recorder

    def retire(self) -> None:
        """Record nothing more."""
        self.is_retired = True
        self.__dict__.pop("__torch_function__", None)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_retired:
            return func(*args, **kwargs)
        if types and _PLAIN_TYPES.issuperset(types):
            # Functions of torch that are written in Python name the plain ones, too.
            types = ()
        if _is_replaced(func):
            func = _called_function(func, sys._getframe(1))
        if func in self._passes:
            # A class of the user's own has a say in it.
            run = func if types else self._passes[func]
            return run(*args, **kwargs)
        if func in _SETS_DATA:
            # No call, but it raises no version: `nn.utils.vector_to_parameters` writes so.
            func(*args, **kwargs)
            return self._session.recorder.forget_tensor(args[0])
        api = self._session.apis.look_up(func)
        if api is None:
            return func(*args, **kwargs)
        if torch._C._current_graph_task_id() != -1 and (
            _is_inside_operator(func) or sys._getframe(1).f_code is _CUT_OFF
        ):
            return func(*args, **kwargs)
        if self._is_distributed and _is_machinery(sys._getframe(1)):
            return func(*args, **kwargs)
        if func is torch.empty and sys._getframe(1).f_code.co_filename == _UNPICKLING:
            # When batches of a DataLoader's workers arrive differs from run to run.
            return func(*args, **kwargs)
        frame = sys._getframe(1)
        if api.may_be_operator:
            written = self._as_written(api, args, frame)
            if written is None:
                return func(*args, **kwargs)
            api = written
        spelled = as_spelled(func, args, kwargs, frame)
        if types:
            return self._watch_subclasses(api, func, args, kwargs, spelled)
        return self._session.watch_call(api, func, args, kwargs, spelled=spelled)

    def _note(self, func: Callable[..., Any]) -> None:
        """Note how calls of a function are recorded, before its first."""
        apis = self._session.apis
        if func in self._passes or func in _SETS_DATA or _is_replaced(func):
            apis.usual[func] = False
        else:
            note_function(apis, func, apis.look_up(func))

    def _as_written(self, api: Api, args: tuple[Any, ...], frame: FrameType) -> Api | None:
        """Return what a call was written as in a frame; None if that is left out."""
        written = _read_operator(api, args, frame)
        return None if self._session.apis.is_skipped(written) else written

    def _watch_subclasses(
        self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any, spelled: Any
    ) -> Any:
        """Watch a call with tensors whose class has a `__torch_function__`: not of our looking."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._EnableTorchFunction():
                return func(*args, **kwargs)

        with torch._C.DisableTorchFunctionSubclass():
            return self._session.watch_call(api, run, args, kwargs, spelled=spelled)

    def _with_mode_in_engine(self, function: Any) -> Callable[..., Any]:
        """Copy a function of torch.autograd so that this mode is on while the engine runs.

        Recomputation happens there and must be seen, and a mode is off in its own handler. The copy
        has its own names for the engine and for the question whether a mode is on; torch keeps its.
        """
        space = dict(function.__globals__)
        engine = space.get(_ENGINE)
        if engine is not None:
            space[_ENGINE] = self._with_mode(engine)
        else:
            # torch 2.1 calls the engine as a method.
            engine = space["Variable"]._execution_engine
            run = SimpleNamespace(run_backward=self._with_mode(engine.run_backward))
            space["Variable"] = SimpleNamespace(_execution_engine=run)
        space["has_torch_function"] = lambda _: False
        copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__)
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    def _with_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            # The tensors, their gradients, whether the graph stays, and whether there is another.
            creates_graph = len(args) > 3 and bool(args[3])
            with self, self._session.recomputation.follow_pass(creates_graph=creates_graph):
                return function(*args, **kwargs)

        return run


def _is_replaced(func: Callable[..., Any]) -> bool:
    """Whether a function may stand in a module of torch in place of torch's own."""
    space = getattr(func, "__globals__", None)
    if space is None:
        # Compiled; or an object of somebody's own, which says where it comes from.
        home = getattr(func, "__module__", None) or getattr(type(func), "__module__", "")
    else:
        # A wrapper may carry the name of what it wraps, but not its names.
        home = space.get("__name__") or ""
    return not (home in ("builtins", "torch") or str(home).startswith("torch."))


def _called_function(func: Callable[..., Any], frame: FrameType) -> Callable[..., Any]:
    """Return the function of torch that hands its call over, if another one took its name.

    A function of torch that is written in Python says by its global name who it is. Where somebody
    has put another function there that calls it, that other one would run a second time.
    """
    at_work = frame.f_back
    if frame.f_code is not _HAND_OVER or at_work is None:
        return func
    code = at_work.f_code
    home = str(at_work.f_globals.get("__name__"))
    if code is getattr(func, "__code__", None) or not home.startswith("torch"):
        return func
    if id(code) not in _originals:
        # Who replaced it calls it, so that it is still there, with its defaults.
        holders = (holder for holder in gc.get_referrers(code) if type(holder) is FunctionType)
        _originals[id(code)] = (code, next((f for f in holders if f.__code__ is code), None))
    return _originals[id(code)][1] or func


def _is_inside_operator(func: Callable[..., Any]) -> bool:
    """Whether an operator of a backward pass is at work, and what it calls is its own business.

    Our mode is on there, and some tensor classes compute in Python (DTensor), with calls that come
    and go as they remember what they have worked out before.
    """
    if torch.is_grad_enabled():
        # Recomputation, which torch may ask for from inside an operator.
        return False
    # The engine itself calls below the modes, as when it keeps a gradient.
    is_overload = isinstance(func, torch._ops.OpOverload)
    return is_overload or torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD)


def _is_machinery(frame: FrameType) -> bool:
    """Whether a call is made by what distributes a model: FSDP's buffers, DTensor's conversions."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename in _BETWEEN:
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_DISTRIBUTED)


def _read_operator(api: Api, args: tuple[Any, ...], frame: FrameType) -> Api:
    """Return the operator that a call was written as in a frame, or the API that it is."""
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        # A mode of somebody else's stands above ours and hands its call on.
        frame = frame.f_back
    name = operator_at(frame)
    if name is None:
        return api
    if name in _COMMUTATIVE and len(args) == 2 and not isinstance(args[1], torch.Tensor):
        # Of these, torch has another function for the operator that is not reflected.
        is_reflected_alone = api.api_name.startswith("bitwise_")
        is_other_first = is_reflected_alone or is_reflected(frame, args[0])
        name = operator_at(frame, is_other_first=is_other_first) or name
    return _operator(name)


@cache
def _operator(name: str) -> Api:
    return Api("Tensor", name)
