"""The one debugger that is current in a process.

It is the only state of the tool that belongs to the process: `PrecisionDebugger.start()` works from
another file, and `save` from the middle of a model, without handing a debugger around.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from tensorprobe.errors import ConfigError

if TYPE_CHECKING:
    from tensorprobe.capture.debugger import PrecisionDebugger

__all__ = ["OnClassToo", "current_debugger", "is_latest", "make_current"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_current: PrecisionDebugger | None = None


def current_debugger() -> PrecisionDebugger | None:
    """Return the debugger that was made last, unless it has ended."""
    return None if _current is None or _current.is_closed else _current


def is_latest(debugger: PrecisionDebugger) -> bool:
    """Whether no other debugger was made after this one, which may have ended."""
    return _current is debugger


def make_current(debugger: PrecisionDebugger) -> None:
    """Make a debugger the current one."""
    global _current
    _current = debugger


class OnClassToo(Generic[_P, _R]):
    """A method that works on an instance and, through the current debugger, on the class."""

    def __init__(self, function: Callable[Concatenate[Any, _P], _R]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[_P, _R]:
        target = instance if instance is not None else _current
        if target is None:
            raise ConfigError(
                "there is no debugger yet; make a PrecisionDebugger(…) before "
                f"PrecisionDebugger.{self._function.__name__}()"
            )
        return functools.partial(self._function, target)


def _abandon_in_fork() -> None:
    if _current is not None:
        _current.abandon_in_fork()


os.register_at_fork(after_in_child=_abandon_in_fork)
