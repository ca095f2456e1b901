"""Find the function that a recorded call's name stands for, on a list that is made from torch.

    type and name ─► the space of torch that the type stands for ─► its one attribute of that name
                                                                └► is it one that computes?

The names are those that `capture` gives and those of the older tools. A name is a key: it chooses
one attribute of one of the spaces below and is never walked any further, so a file reaches nothing
that torch does not count among its operations.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional
import torch.signal.windows

from tensorprobe.errors import NameFormatError, RebuildError
from tensorprobe.names import API_TYPES, ApiCall, parse_call
from tensorprobe.replay.forbidden import (
    is_torch_operator,
    why_name_is_forbidden,
    why_operator_is_forbidden,
)
from tensorprobe.replay.users import find_users_function

__all__ = ["find_callable", "find_function", "parse_api_call"]


@dataclass(frozen=True, slots=True)
class _Space:
    """A part of torch whose attributes are functions.

    Attributes:
        path: how a script names it.
        space: the module or class.
        operator: what the names of its operators begin with.
        public: what else in it counts, beside operators and what torch lets be watched.
        watched: what torch tells a function mode about, which is all that `capture` can see. By
            name: what others put in the place of a function of torch is still that operation.
    """

    path: str
    space: Any
    operator: str = "aten::"
    public: frozenset[str] = frozenset()
    watched: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(name for name in dir(self.space) if self._is_watched(name))
        object.__setattr__(self, "watched", names)

    def _is_watched(self, name: str) -> bool:
        function = _attribute(self.space, name)
        if self.space is torch.Tensor and not callable(function):
            function = getattr(function, "__get__", None)
        return getattr(function, "__hash__", None) is not None and function in _overridable()


def _attribute(space: Any, name: str) -> Any:
    """Return what is there; some modules of torch import others when they are asked for them."""
    return vars(space).get(name) if isinstance(space, ModuleType) else getattr(space, name, None)


@cache
def _overridable() -> frozenset[Any]:
    with warnings.catch_warnings():
        # torch 2.1 warns of names of its own that it looks at for this.
        warnings.simplefilter("ignore")
        found = torch.overrides.get_overridable_functions()
    functions = [function for each in found.values() for function in each]
    return frozenset(function for function in functions if function.__hash__ is not None)


def _public(space: Any) -> frozenset[str]:
    return frozenset(getattr(space, "__all__", ()))


def _functionals() -> frozenset[str]:
    """Return what torch.nn.functional hands out: its own functions, not what it imports."""
    return frozenset(
        name
        for name, function in vars(torch.nn.functional).items()
        if not name.startswith("_")
        and isinstance(function, (BuiltinFunctionType, FunctionType))
        and function.__module__ in (None, "torch", "torch._C._nn", "torch.nn.functional")
    )


_PRIVATE: Any = torch._C
_NATIVE = _Space("torch._C._VariableFunctions", torch._C._VariableFunctions)
# They have no operator of their own: they make tensors of Python's numbers.
_MAKERS = frozenset(("as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor", "tensor"))
_TORCH = _Space("torch", torch, public=_MAKERS)
# By the type of a name and what stands before its last dot; the first that has it counts.
_SPACES: dict[str, dict[str, tuple[_Space, ...]]] = {
    "Functional": {
        "": (
            _Space("torch.nn.functional", torch.nn.functional, public=_functionals()),
            _Space("torch._C._nn", _PRIVATE._nn),
            _TORCH,
        )
    },
    "Torch": {
        # torch.functional holds the few functions that torch itself replaces by a dispatcher of
        # another name.
        "": (
            _TORCH,
            _NATIVE,
            _Space("torch.functional", torch.functional, public=_public(torch.functional)),
            _Space("torch.sparse", torch.sparse, public=_public(torch.sparse)),
            _Space("torch._C._sparse", _PRIVATE._sparse),
            _Space(
                "torch.signal.windows",
                torch.signal.windows,
                public=_public(torch.signal.windows),
            ),
        ),
        "functional": (
            _Space("torch.functional", torch.functional, public=_public(torch.functional)),
        ),
        "linalg": (_Space("torch.linalg", torch.linalg, "aten::linalg_"),),
        "fft": (_Space("torch.fft", torch.fft, "aten::fft_"),),
        "special": (_Space("torch.special", torch.special, "aten::special_"),),
        "sparse": (_Space("torch.sparse", torch.sparse, public=_public(torch.sparse)),),
        "nested": (_Space("torch.nested", torch.nested, public=_public(torch.nested)),),
        "signal.windows": (
            _Space(
                "torch.signal.windows",
                torch.signal.windows,
                public=_public(torch.signal.windows),
            ),
        ),
    },
    "Tensor": {"": (_Space("torch.Tensor", torch.Tensor, public=frozenset(("new_tensor",))),)},
    "VF": {"": (_Space("torch._VF", torch._C._VariableFunctions), _TORCH)},
}
# What gives another tensor; the rest tells of a tensor what a record has in words.
_PROPERTIES = frozenset(("H", "T", "data", "grad", "imag", "mH", "mT", "real"))
# Operators that Python knows and torch does not have as methods, or that torch renamed.
_METHODS = {
    "__div__": "__truediv__",
    "__idiv__": "__itruediv__",
    "__imatmul__": "__matmul__",
    "__nonzero__": "__bool__",
    "__rdiv__": "__rtruediv__",
}


def find_callable(name: str) -> Callable[..., Any]:
    """Return the function that a call's name stands for.

    >>> find_callable("Tensor.__add__.3.forward") is torch.Tensor.__add__
    True
    >>> find_callable("Aten.add.Tensor.0.forward")
    <OpOverload(op='aten.add', overload='Tensor')>

    Raises:
        RebuildError: no such function is known here; the message is the reason.
    """
    call = parse_api_call(name)
    return find_function(call.api_type, call.api_name)[0]


def parse_api_call(name: str) -> ApiCall:
    """Return the parts of the name of a function's call.

    Raises:
        RebuildError: it is the name of something else, such as a module's call.
    """
    try:
        call = parse_call(name)
    except NameFormatError as err:
        raise RebuildError(str(err)) from err
    if not isinstance(call, ApiCall):
        raise RebuildError(f"{name} is no call of a function")
    return call


@cache
def find_function(api_type: str, api_name: str) -> tuple[Callable[..., Any], str]:
    """Return the function of an API by the two parts of its name, and how a script names it.

    >>> find_function("Tensor", "T")[1]
    'torch.Tensor.T.__get__'

    Raises:
        RebuildError: no such function is known here; the message is the reason.
    """
    if api_type == "Distributed":
        raise RebuildError("a collective needs the other ranks")
    if not all(word.isidentifier() for word in api_name.split(".")):
        raise RebuildError(f"{api_type}.{api_name} is no name of a function")
    if api_type == "Aten":
        return _find_operator("aten", api_name, f"{api_type}.{api_name}")
    if api_type == "Custom":
        library, _, operator = api_name.partition(".")
        return _find_operator(library, operator, f"{api_type}.{api_name}")
    if api_type == "NPU":
        return _find_npu(api_name)
    if api_type not in API_TYPES:
        return find_users_function(f"{api_type}.{api_name}")
    within, _, last = api_name.rpartition(".")
    for space in _SPACES.get(api_type, {}).get(within, ()):
        found = _look_into(space, last)
        if found is not None:
            return found
    raise _unknown(f"{api_type}.{api_name}")


def _unknown(name: str, hint: str = "") -> RebuildError:
    return RebuildError(f"there is no {name} in torch {torch.__version__}{hint}")


def _look_into(space: _Space, name: str) -> tuple[Callable[..., Any], str] | None:
    """Return the function of a space and its path; None if it has none of that name.

    Raises:
        RebuildError: it has one that is not to be called.
    """
    function = _attribute(space.space, name)
    if function is None and space.space is torch.Tensor:
        name = _METHODS.get(name, name)
        function = _attribute(space.space, name)
    path = f"{space.path}.{name}"
    if function is None:
        return None
    if reason := why_name_is_forbidden(name):
        raise RebuildError(f"{path} is not made again: it {reason}")
    if space.space is torch.Tensor and not callable(function):
        # A property, such as Tensor.T: reading it is the call.
        if name not in _PROPERTIES:
            return None
        path, function = f"{path}.__get__", getattr(function, "__get__", None)
    if not callable(function) or isinstance(function, type):
        return None
    operator = f"{space.operator}{name}"
    if is_torch_operator(operator):
        if reason := why_operator_is_forbidden(operator):
            raise RebuildError(f"{path} is not made again: it {reason}")
        return function, path
    if name in space.public or name in space.watched:
        return function, path
    raise RebuildError(f"{path} is not made again: torch does not count it among its operations")


def _find_operator(library: str, name: str, shown: str) -> tuple[Callable[..., Any], str]:
    """Return an operator, or one overload of it, as torch's dispatcher knows it."""
    operator, _, overload = name.partition(".")
    full = f"{library}::{operator}"
    hint = "" if library == "aten" else "; import the module that registers it with --import"
    if not is_torch_operator(full):
        raise _unknown(shown, hint)
    packet: Any = getattr(getattr(torch.ops, library), operator)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise _unknown(shown, hint)
    overloads: Any = packet.overloads
    if overload and overload not in overloads():
        raise _unknown(shown, hint)
    schema = {"": None, "default": ""}.get(overload, overload)
    if reason := why_operator_is_forbidden(full, schema):
        raise RebuildError(f"{shown} is not made again: it {reason}")
    path = f"torch.ops.{library}.{operator}"
    if not overload:
        return packet, path
    return getattr(packet, overload), f"{path}.{overload}"


def _find_npu(name: str) -> tuple[Callable[..., Any], str]:
    """Return a function of torch_npu, which only the device or the user's import brings."""
    module = sys.modules.get("torch_npu")
    function = getattr(module, name, None) if "npu_" in name else None
    if isinstance(function, (BuiltinFunctionType, FunctionType)):
        if reason := why_operator_is_forbidden(f"npu::{name}"):
            raise RebuildError(f"NPU.{name} is not made again: it {reason}")
        return function, f"torch_npu.{name}"
    return _find_operator("npu", name, f"NPU.{name}")
