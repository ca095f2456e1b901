"""L1: see every torch API call through a TorchFunctionMode. Nothing is replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from tensorprobe.capture.apis import Api
from tensorprobe.capture.operators import is_right_operand, operator_at
from tensorprobe.capture.spelling import as_spelled

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["FunctionWatcher"]

# Functions that an operator may hide behind.
_MAYBE_OPERATORS = frozenset(
    ("add", "add_", "div", "div_", "eq", "ge", "gt", "le", "lt", "matmul", "mul", "mul_", "ne",
     "neg", "pow", "remainder", "remainder_", "sub", "sub_", "true_divide")
)  # fmt: skip


_ENGINE = "_engine_run_backward"


class FunctionWatcher(TorchFunctionMode):
    """Hands every API call that counts to the session."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._passes = {
            torch.autograd.backward: self._with_mode_in_engine(torch.autograd.backward),
            torch.autograd.grad: self._with_mode_in_engine(torch.autograd.grad),
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            func, kwargs = torch.autograd.backward, dict(kwargs)
            kwargs["grad_tensors"] = kwargs.pop("gradient", None)
        if func in self._passes:
            return self._passes[func](*args, **kwargs)
        api = self._session.apis.look_up(func)
        if api is None:
            return func(*args, **kwargs)
        if api.api_type == "Tensor" and api.api_name in _MAYBE_OPERATORS:
            api = _as_written(api, args)
        return self._session.watch_call(
            api, func, args, kwargs, spelled=as_spelled(func, args, kwargs)
        )

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
            with self:
                return function(*args, **kwargs)

        return run


def _as_written(api: Api, args: tuple[Any, ...]) -> Api:
    frame = sys._getframe(2)
    name = operator_at(frame)
    if name is None:
        return api
    if len(args) == 2 and not isinstance(args[1], torch.Tensor) and name in ("__add__", "__mul__"):
        name = operator_at(frame, is_other_first=is_right_operand(frame, args[0])) or name
    return Api("Tensor", name)
