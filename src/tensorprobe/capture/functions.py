"""L1: see every torch API call through a TorchFunctionMode. Nothing is replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from tensorprobe.capture.apis import Api
from tensorprobe.capture.operators import is_right_operand, operator_at

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["FunctionWatcher"]

# Functions that an operator may hide behind.
_MAYBE_OPERATORS = frozenset(
    ("add", "add_", "div", "div_", "eq", "ge", "gt", "le", "lt", "matmul", "mul", "mul_", "ne",
     "neg", "pow", "remainder", "remainder_", "sub", "sub_", "true_divide")
)  # fmt: skip


class FunctionWatcher(TorchFunctionMode):
    """Hands every API call that counts to the session."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            # Recomputation happens inside: it must be seen too, and a mode is off in its handler.
            with self:
                return torch.autograd.backward(args[0], **_backward_arguments(*args[1:], **kwargs))
        api = self._session.apis.look_up(func)
        if api is None:
            return func(*args, **kwargs)
        if api.api_type == "Tensor" and api.api_name in _MAYBE_OPERATORS:
            api = _as_written(api, args)
        return self._session.watch_call(api, func, args, kwargs)


def _backward_arguments(
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> dict[str, Any]:
    return {
        "grad_tensors": gradient,
        "retain_graph": retain_graph,
        "create_graph": create_graph,
        "inputs": inputs,
    }


def _as_written(api: Api, args: tuple[Any, ...]) -> Api:
    frame = sys._getframe(2)
    name = operator_at(frame)
    if name is None:
        return api
    if len(args) == 2 and not isinstance(args[1], torch.Tensor) and name in ("__add__", "__mul__"):
        name = operator_at(frame, is_other_first=is_right_operand(frame, args[0])) or name
    return Api("Tensor", name)
