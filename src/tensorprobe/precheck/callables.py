"""Find the function that a recorded call's name stands for.

The names are those that `capture` gives and those of the older tools, which are the same but for
calls that only they record.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tensorprobe.errors import NameFormatError, RebuildError
from tensorprobe.names import ApiCall, parse_call

__all__ = ["find_callable", "find_function", "parse_api_call", "path_of_function"]

# In this order; a name's dots lead further down. torch.functional holds the few functions that
# torch itself replaces by a dispatcher of another name.
_HOMES: dict[str, tuple[str, ...]] = {
    "Functional": ("torch.nn.functional", "torch._C._nn", "torch"),
    "Torch": (
        "torch",
        "torch._C._VariableFunctions",
        "torch.functional",
        "torch.sparse",
        "torch._C._sparse",
        "torch.signal.windows",
    ),
    "Tensor": ("torch.Tensor",),
    "VF": ("torch._VF", "torch"),
    "Aten": ("torch.ops.aten",),
    "NPU": ("torch_npu", "torch.ops.npu"),
    "Custom": ("torch.ops",),
}
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
    return find_function(call.api_type, call.api_name)


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


def find_function(api_type: str, api_name: str) -> Callable[..., Any]:
    """Return the function of an API, by the two parts of its name.

    Raises:
        RebuildError: no such function is known here; the message is the reason.
    """
    return _find(api_type, api_name)[0]


def path_of_function(api_type: str, api_name: str) -> str:
    """Return how a script that imports torch names the function of an API.

    >>> path_of_function("Tensor", "T")
    'torch.Tensor.T.__get__'
    """
    return _find(api_type, api_name)[1]


@cache
def _find(api_type: str, api_name: str) -> tuple[Callable[..., Any], str]:
    if api_type == "Distributed":
        raise RebuildError("a collective needs the other ranks")
    homes = _HOMES.get(api_type)
    if homes is None:
        # A function of the user's own: its prefix is its module's name unless they gave another.
        if api_type not in sys.modules:
            raise RebuildError(
                f"the functions called {api_type} are not known here; if that is a module, "
                f"import it with --import {api_type}"
            )
        homes = (api_type,)
    for home in homes:
        name = api_name
        found = _below(_home(home), name.split("."))
        if found is None and api_type == "Tensor" and name in _METHODS:
            name = _METHODS[name]
            found = getattr(torch.Tensor, name, None)
        if found is not None and not callable(found):
            # A property, such as Tensor.T: reading it is the call.
            name, found = f"{name}.__get__", getattr(found, "__get__", None)
        if callable(found):
            return found, f"{home}.{name}"
    raise RebuildError(
        f"there is no {api_type}.{api_name} in torch {torch.__version__}"
        + ("; import the module that registers it with --import" if api_type == "Custom" else "")
    )


def _home(path: str) -> Any:
    """Return the module or class at a dotted path, or None if it is not installed."""
    module, _, rest = path.partition(".")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in rest.split(".") if rest else ():
        found = getattr(found, part, None)
    return found


def _below(home: Any, path: list[str]) -> Any:
    found = home
    for part in path:
        try:
            found = getattr(found, part, None)
        except RuntimeError:
            # How torch.ops says that a library has no such operator.
            found = None
        if found is None:
            return None
    return found
