"""Which calls count, and what each is called.

The rules are data, in apis.json beside this file: everything that computes counts, what only asks
a tensor about itself does not. A configuration adds to both sides by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["Api", "ApiTable"]

_RULES: dict[str, Any] = json.loads(Path(__file__).with_name("apis.json").read_text())
_LEFT_OUT = {kind: frozenset(names) for kind, names in _RULES["left_out"].items()}
_GETTERS = frozenset(_RULES["getters"])
_VF = frozenset(_RULES["VF"])
_LEFT_OUT_MODULES = tuple(_RULES["left_out_modules"])
_TENSOR_BASE = torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase
# Written as operators; torch hands all of them over under one function.
_OWN_OPERATORS = {
    getattr(torch.Tensor, name): name
    for name in (
        "__floordiv__",
        "__ifloordiv__",
        "__ipow__",
        "__pow__",
        "__rdiv__",
        "__rfloordiv__",
        "__rlshift__",
        "__rmatmul__",
        "__rmod__",
        "__rpow__",
        "__rrshift__",
        "__rsub__",
    )
    if hasattr(torch.Tensor, name)
}


@dataclass(frozen=True, slots=True)
class Api:
    """The two parts of an API's name, and both together."""

    api_type: str
    api_name: str
    full_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "full_name", f"{self.api_type}.{self.api_name}")


class ApiTable:
    """Looks up what a function is called, once per function.

    Args:
        add: names to count although the rules leave them out, `Tensor.item`.
        skip: names to leave out although the rules count them, `Tensor.__getitem__`.

    Attributes:
        usual: what gate.py notes of functions whose calls compiled code can record.
    """

    def __init__(self, *, add: Iterable[str] = (), skip: Iterable[str] = ()) -> None:
        self._add = frozenset(add)
        self._skip = frozenset(skip)
        self._known: dict[Any, Api | None] = {}
        self._custom: dict[Any, Api] = {}
        self.usual: dict[Any, tuple[Api, str, int] | None] = {}

    def register(self, module: ModuleType | type, name: str, prefix: str) -> None:
        """Count a function of any module under a prefix of the user's own."""
        function = getattr(module, name)
        self._custom[function] = Api(prefix, name)
        self._forget(function)

    def restore(self, module: ModuleType | type, name: str) -> None:
        """Undo `register`."""
        function = getattr(module, name)
        self._custom.pop(function, None)
        self._forget(function)

    def _forget(self, function: Any) -> None:
        self._known.pop(function, None)
        self.usual.pop(function, None)

    def look_up(self, function: Callable[..., Any]) -> Api | None:
        """Return an API's name, or None if its calls do not count."""
        try:
            return self._known[function]
        except KeyError:
            api = self._known[function] = self._find(function)
            return api
        except TypeError:
            # Not hashable: nothing that torch itself hands over.
            return None

    def _find(self, function: Callable[..., Any]) -> Api | None:
        if function in self._custom:
            return self._custom[function]
        api = _name_of(function)
        if api is None:
            return None
        full = api.full_name
        if full in self._skip:
            return None
        is_left_out = api.api_name in _LEFT_OUT.get(api.api_type, ())
        return None if is_left_out and full not in self._add else api


def _name_of(function: Callable[..., Any]) -> Api | None:
    if function in _OWN_OPERATORS:
        return Api("Tensor", _OWN_OPERATORS[function])
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    if name in ("__get__", "__set__", "__delete__"):
        getter = getattr(getattr(function, "__self__", None), "__name__", "")
        return Api("Tensor", getter) if name == "__get__" and getter in _GETTERS else None
    if module.startswith(_LEFT_OUT_MODULES) or not name:
        return None
    if (
        getattr(function, "__objclass__", None) in (_TENSOR_BASE, torch.Tensor)
        or module == "torch._tensor"
    ):
        return Api("Tensor", name)
    if module.startswith("torch._ops."):
        space = module.removeprefix("torch._ops.")
        if space == "aten":
            return Api("Aten", name)
        return Api("NPU", name) if space == "npu" else Api("Custom", f"{space}.{name}")
    if module in ("torch.nn.functional", "torch._C._nn"):
        return Api("Functional", name)
    if module.startswith("torch_npu"):
        return Api("NPU", name)
    for space in ("linalg", "fft", "special"):
        if module == f"torch._C._{space}":
            return Api("Torch", f"{space}.{name.removeprefix(space + '_')}")
    if name in _VF:
        return Api("VF", name)
    return Api("Torch", name) if module.startswith("torch") else None
