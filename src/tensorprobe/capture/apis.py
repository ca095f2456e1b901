"""Which calls count, and what each is called.

The rules are data, in apis.json beside this file: everything that computes counts, what only asks
a tensor about itself does not. A configuration adds to both sides by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal

import torch

from tensorprobe.capture.api_list import ApiList
from tensorprobe.capture.operators import MAGIC_NAMES

__all__ = ["Api", "ApiTable", "as_in_dump"]

_LOG = logging.getLogger("tensorprobe")
_RULES: dict[str, Any] = json.loads(Path(__file__).with_name("apis.json").read_text())
_LEFT_OUT = {kind: frozenset(names) for kind, names in _RULES["left_out"].items()}
_GETTERS = frozenset(_RULES["getters"])
_VF = frozenset(_RULES["VF"])
_OTHER_NAMES: dict[str, str] = _RULES["other_names"]
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
# Functions that an operator may hide behind.
_MAYBE_OPERATORS = frozenset(
    ("add", "add_", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "div_", "eq",
     "floor_divide_", "ge", "gt", "le", "lt", "matmul", "mul", "mul_", "ne", "neg", "pow",
     "remainder", "remainder_", "sub", "sub_", "true_divide")
)  # fmt: skip
# What torch.nn.functional hands out has the name that it has there, also where torch itself has the
# same function: F.conv2d is torch.conv2d, and F.threshold calls itself _threshold.
_FUNCTIONALS: dict[Any, str] = {
    function: name
    for name, function in vars(torch.nn.functional).items()
    if not name.startswith("_")
    and isinstance(function, (BuiltinFunctionType, FunctionType))
    and function.__module__ in (None, "torch", "torch._C._nn", "torch.nn.functional")
}
# Where a name's functions are, as a user writes it and as a dump has it.
_HOMES: dict[str, tuple[str, Any]] = {
    "torch.nn.functional.": ("Functional", torch.nn.functional),
    "torch.Tensor.": ("Tensor", torch.Tensor),
    "torch.": ("Torch", torch),
}
# The same for packages that need not be here.
_OTHER_HOMES = {"torch_npu.": "NPU.", "mindspeed.ops.": "MindSpeed."}
# An operator that has a method of another name.
_WRITTEN_OTHERWISE = {"Tensor.__itruediv__": "Tensor.__idiv__"}


@dataclass(frozen=True, slots=True)
class Api:
    """The two parts of an API's name, both together, and whether an operator may be behind it."""

    api_type: str
    api_name: str
    full_name: str = field(init=False)
    may_be_operator: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "full_name", f"{self.api_type}.{self.api_name}")
        is_behind_one = self.api_type == "Tensor" and self.api_name in _MAYBE_OPERATORS
        object.__setattr__(self, "may_be_operator", is_behind_one)


class ApiTable:
    """Looks up what a function is called, once per function.

    Args:
        add: names to count although the rules leave them out, `Tensor.item`.
        skip: names to leave out although the rules count them, `Tensor.__getitem__`, also as Python
            knows them, `torch.nn.functional.gelu`. Of those that torch does not have it warns.
        listed: what a list of the user's says; what it names counts, as `add` does.

    Attributes:
        usual: what fast_recorder.py notes of functions whose calls compiled code can record;
            False: Python.
    """

    def __init__(
        self,
        *,
        add: Iterable[str] = (),
        skip: Iterable[str] = (),
        listed: ApiList | None = None,
    ) -> None:
        self._add = frozenset(map(as_in_dump, add))
        self._listed = listed
        named = {name: as_in_dump(name) for name in skip}
        self._skip = frozenset(named.values())
        for unknown in (name for name, full in named.items() if not _exists(full)):
            _LOG.warning(
                "skip_apis holds %r, which leaves nothing out: torch has no such API", unknown
            )
        self._known: dict[Any, Api | None] = {}
        self._custom: dict[Any, Api] = {}
        self.usual: dict[Any, tuple[Api, str, int] | Literal[False] | None] = {}

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
        if self.is_skipped(api) and not api.may_be_operator:
            return None
        is_left_out = api.api_name in _LEFT_OUT.get(api.api_type, ())
        return None if is_left_out and not self._is_added(api.full_name) else api

    def _is_added(self, full_name: str) -> bool:
        return full_name in self._add or (
            self._listed is not None and self._listed.names(full_name)
        )

    def is_skipped(self, api: Api) -> bool:
        """Whether the user leaves out an API, which may have been written as an operator."""
        return self.leaves_out(api.full_name)

    def leaves_out(self, full_name: str) -> bool:
        """Whether the user leaves out what has this name, `Distributed.all_reduce`."""
        if full_name in self._skip:
            return True
        return (
            self._listed is not None
            and full_name not in self._add
            and self._listed.leaves_out(full_name)
        )


def as_in_dump(name: str) -> str:
    """Return the name that calls of a function have in a dump.

    >>> as_in_dump("torch.nn.functional.gelu"), as_in_dump("Torch.conv2d")
    ('Functional.gelu', 'Functional.conv2d')
    >>> as_in_dump("torch_npu.npu_rms_norm")
    'NPU.npu_rms_norm'
    """
    for other, prefix in _OTHER_HOMES.items():
        if name.startswith(other):
            # A module stands before the function of the one, and not in its name.
            return prefix + name.removeprefix(other).rpartition(".")[2]
    for home, (kind, _) in _HOMES.items():
        if name.startswith(home):
            name = f"{kind}.{name.removeprefix(home)}"
            break
    if name in _WRITTEN_OTHERWISE:
        return _WRITTEN_OTHERWISE[name]
    function = _find_function(name)
    api = _name_of(function) if callable(function) else None
    return name if api is None else api.full_name


def _find_function(full_name: str) -> Any:
    """Return the function of torch that has a name; None if there is none."""
    kind, *parts = full_name.split(".")
    found = next((space for other, space in _HOMES.values() if other == kind), None)
    for part in parts:
        found = getattr(found, part, None)
    return found


def _exists(full_name: str) -> bool:
    """Whether torch has a function of this name, where that can be told."""
    kind, _, name = full_name.partition(".")
    is_told = any(other == kind for other, _ in _HOMES.values())
    return not is_told or name in MAGIC_NAMES or _find_function(full_name) is not None


def _name_of(function: Callable[..., Any]) -> Api | None:
    if function in _OWN_OPERATORS:
        return Api("Tensor", _OWN_OPERATORS[function])
    if function in _FUNCTIONALS:
        name = _FUNCTIONALS[function]
        return Api("Functional", _OTHER_NAMES.get(name, name))
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
