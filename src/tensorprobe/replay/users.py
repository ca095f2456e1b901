"""Functions of the user's own: what they import with `--import`, or register, can be called.

A file cannot choose among the modules that happen to be loaded. A function has a name here because
the user's own code gave it one: it registered the function, or its module lists it in `__all__`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tensorprobe.errors import ConfigError, RebuildError

__all__ = ["find_users_function", "import_modules", "register_function"]

_registered: dict[str, tuple[Callable[..., Any], str]] = {}


def register_function(name: str, function: Callable[..., Any]) -> None:
    """Let recorded calls of a function of your own be made again, by precheck and its kin.

    Call it in the module that you give with `--import`; a module that lists its functions in
    `__all__` need not.

    Args:
        name: as calls have it in a dump, without number and direction: `MyOps.fused_norm`.
        function: what is called; a function that can be imported from its module.

    Raises:
        ConfigError: the name is no name of a call, or the function cannot be imported from where
            it says that it is.
    """
    words = name.split(".") if isinstance(name, str) else []
    if len(words) < 2 or not all(word.isidentifier() for word in words):
        raise ConfigError(f"register_function: {name!r} is no name such as 'MyOps.fused_norm'")
    module = getattr(function, "__module__", None)
    place = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module or "")
    for part in place.split("."):
        found = getattr(found, part, None)
    if found != function:
        raise ConfigError(
            f"register_function: {name!r} is to be {function!r}, which cannot be imported from its "
            "module; give a function that stands in a module under its own name"
        )
    _registered[name] = (function, f"{module}.{place}")


def import_modules(names: tuple[str, ...]) -> None:
    """Import the modules that hold the user's own functions and operators.

    Raises:
        RebuildError: one of them cannot be imported.
    """
    for name in names:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as err:  # whatever the user's module does
            raise RebuildError(
                f"the module {name} cannot be imported ({type(err).__name__}: {err}); "
                "put its folder on PYTHONPATH"
            ) from err
        offered = getattr(module, "__all__", ())
        for listed in offered if isinstance(offered, (list, tuple)) else ():
            _offer(module, listed)


def find_users_function(full_name: str) -> tuple[Callable[..., Any], str]:
    """Return a function of the user's own and how a script names it.

    Raises:
        RebuildError: there is none of that name; the message says how to give one.
    """
    found = _registered.get(full_name)
    if found is None:
        raise RebuildError(
            f"the function {full_name} is not known here; give the module that holds it with "
            "--import, and have that list it in __all__ or call tensorprobe.register_function"
        )
    return found


def _offer(module: ModuleType, listed: Any) -> None:
    """Give what a module lists the names that a capture gives its calls."""
    function = getattr(module, listed, None) if isinstance(listed, str) else None
    if isinstance(function, type):
        # register_custom_api(MyFunction, "apply") names its calls after the class.
        apply = getattr(function, "apply", None)
        if _is_autograd_function(function) and callable(apply):
            _registered[f"{listed}.apply"] = (apply, f"{module.__name__}.{listed}.apply")
        return
    if callable(function):
        path = f"{module.__name__}.{listed}"
        for prefix in (module.__name__, module.__name__.rpartition(".")[2]):
            _registered[f"{prefix}.{listed}"] = (function, path)


def _is_autograd_function(function: type) -> bool:
    autograd = sys.modules.get("torch.autograd")
    return autograd is not None and issubclass(function, autograd.Function)
