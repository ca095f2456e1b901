"""Record functions of the user's own: what `register_custom_api` asks for.

A function of torch passes the function watcher anyway and only needs a name. A plain Python
function does not, so it is replaced by one that reports its calls, until it is restored.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from tensorprobe.capture.apis import Api, ApiTable, as_in_dump
from tensorprobe.errors import ConfigError
from tensorprobe.names import API_TYPES

__all__ = ["CustomApis"]

_LOG = logging.getLogger("tensorprobe")
# Packages whose functions have a type of their own in a dump.
_PREFIXES = ("NPU", "MindSpeed")

Watch = Callable[[Api, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(slots=True)
class _Replaced:
    """A function that was replaced: where, by what, and what stood there itself, if anything."""

    home: Any
    name: str
    wrapper: Any
    original: Any
    is_own: bool
    is_active: bool = True


class CustomApis:
    """Keeps what the user registered, and puts everything back.

    Args:
        table: where functions of torch get their names.
        watch: records one call of a function that was replaced.
    """

    def __init__(self, table: ApiTable, watch: Watch) -> None:
        self._table = table
        self._watch = watch
        self._replaced: list[_Replaced] = []
        self._named: list[tuple[Any, str]] = []

    def register(self, home: Any, name: str, prefix: str | None = None) -> None:
        """Record the calls of `home.name` as `{prefix}.{name}.{number}.forward`.

        Raises:
            ConfigError: there is no such function, or its name cannot be used.
        """
        function = _function_of(home, name)
        prefix = prefix or getattr(home, "__name__", "Custom")
        if not isinstance(prefix, str) or not _is_prefix(prefix):
            raise ConfigError(
                f"register_custom_api: the prefix is {prefix!r}, wanted a word such as 'MyOps' "
                "that is not 'Module'"
            )
        self.restore(home, name)
        if _passes_the_watcher(function):
            self._table.register(home, name, prefix)
            self._named.append((home, name))
        else:
            self._replace(home, name, Api(prefix, name))

    def add(self, names: Iterable[str]) -> None:
        """Register what in `add_apis` is a function's place, such as `my_package.ops.fused`.

        Functions of torch_npu are called `NPU.…`, as in the dumps of the older tools.
        """
        for name in names:
            kind = as_in_dump(name).partition(".")[0]
            home, _, function = name.rpartition(".")
            if home == "NPU":
                home = "torch_npu"
            elif kind in API_TYPES and kind != "NPU":
                # Of torch: the table of APIs knows it.
                continue
            prefix = kind if kind in _PREFIXES else home.rpartition(".")[2]
            try:
                self.register(import_module(home), function, prefix)
            except (ImportError, ConfigError) as err:
                _LOG.warning("add_apis holds %r, which cannot be recorded: %s", name, err)

    def add_listed(self, names: Iterable[str]) -> None:
        """Register functions that a list names, where they are: it has those of all versions."""
        for name in names:
            home, _, function = name.rpartition(".")
            try:
                found = getattr(import_module(home), function, None)
            except ImportError:
                continue
            # torch tells of all others of theirs: they are its operators.
            if inspect.isfunction(found):
                self.register(import_module(home), function, as_in_dump(name).partition(".")[0])

    def restore(self, home: Any, name: str) -> bool:
        """Undo `register`; returns whether there was anything to undo.

        Raises:
            ConfigError: there is no such function.
        """
        _function_of(home, name)
        for place in self._named:
            if place[0] is home and place[1] == name:
                self._table.restore(home, name)
                self._named.remove(place)
                return True
        for replaced in self._replaced:
            if replaced.home is home and replaced.name == name:
                _put_back(replaced)
                self._replaced.remove(replaced)
                return True
        return False

    def close(self) -> None:
        """Undo every `register`."""
        for home, name in self._named:
            self._table.restore(home, name)
        self._named.clear()
        for replaced in reversed(self._replaced):
            _put_back(replaced)
        self._replaced.clear()

    def _replace(self, home: Any, name: str, api: Api) -> None:
        original = inspect.getattr_static(home, name)
        replaced = _Replaced(home, name, None, original, name in getattr(home, "__dict__", {}))
        replaced.wrapper = self._wrapper(replaced, api)
        try:
            setattr(home, name, replaced.wrapper)
        except (AttributeError, TypeError) as err:
            raise ConfigError(
                f"register_custom_api: {name!r} of {_shown(home)} cannot be replaced: {err}"
            ) from err
        self._replaced.append(replaced)

    def _wrapper(self, replaced: _Replaced, api: Api) -> Any:
        def watch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
            if not replaced.is_active:
                return function(*args, **kwargs)
            return self._watch(api, function, args, kwargs)

        original = replaced.original
        is_in_class = isinstance(replaced.home, type)
        function = (
            original.__func__
            if is_in_class and isinstance(original, (staticmethod, classmethod))
            else getattr(replaced.home, replaced.name)
        )

        @functools.wraps(function)
        def free(*args: Any, **kwargs: Any) -> Any:
            return watch(function, args, kwargs)

        @functools.wraps(function)
        def bound(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            # The object is no input, unless it is a tensor itself.
            if isinstance(owner, torch.Tensor):
                return watch(function, (owner, *args), kwargs)
            return watch(functools.partial(function, owner), args, kwargs)

        if not is_in_class:
            return free
        if isinstance(original, staticmethod):
            return staticmethod(free)
        if isinstance(original, classmethod):
            return classmethod(bound)
        return bound if inspect.isfunction(original) else staticmethod(free)


def _function_of(home: Any, name: str) -> Callable[..., Any]:
    function = getattr(home, name, None) if isinstance(name, str) else None
    if not callable(function):
        raise ConfigError(
            f"register_custom_api: {_shown(home)} has no function {name!r}; give the module or "
            "class that holds it, and its name there"
        )
    if isinstance(function, type):
        # In its place a function would be no class any longer: nothing would be an instance of it.
        raise ConfigError(
            f"register_custom_api: {name!r} of {_shown(home)} is a class; give the class and the "
            "name of a method, such as 'forward' or 'apply'"
        )
    found: Callable[..., Any] = function
    return found


def _is_prefix(text: str) -> bool:
    """Whether names that begin so can be taken apart again; a module's may be several words."""
    words = text.split(".")
    return words[0] != "Module" and all(word.isidentifier() for word in words)


def _put_back(replaced: _Replaced) -> None:
    replaced.is_active = False
    if inspect.getattr_static(replaced.home, replaced.name, None) is not replaced.wrapper:
        # Somebody replaced it after us; their function stays, and ours passes calls through.
        return
    if replaced.is_own:
        setattr(replaced.home, replaced.name, replaced.original)
    else:
        delattr(replaced.home, replaced.name)


def _passes_the_watcher(function: Callable[..., Any]) -> bool:
    """Whether torch tells a TorchFunctionMode about calls of this function."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    with warnings.catch_warnings():
        # torch 2.1 warns of names of its own that it looks at for this.
        warnings.simplefilter("ignore")
        overridable = torch.overrides.get_overridable_functions()
    try:
        return any(function in known for known in overridable.values())
    except TypeError:
        # Not hashable, or not comparable: nothing of torch's.
        return False


def _shown(home: Any) -> str:
    name = getattr(home, "__name__", None)
    return name if isinstance(name, str) else f"a {type(home).__name__}"
