"""Send the calls of a function to a handler while the function stays the object that it is.

A name that was imported long before is seen, and whoever compares the function with itself finds it
equal: the code inside is exchanged, and put back at the end.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

__all__ = ["CodePatch", "Handler", "hide_from_dynamo", "skip_in_dynamo"]

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_set_eval_frame: Any = torch._C._dynamo.eval_frame.set_eval_frame


class CodePatch:
    """Sends the calls of one function to a handler, while the function stays the same object."""

    def __init__(self, function: FunctionType, handler: Handler) -> None:
        self._function = function
        self._handler = handler
        self._detour = _detour_of(function)
        self._was_disabled = function.__dict__.get(_DISABLED)
        self.begin()

    def begin(self) -> None:
        """Divert the calls; a new patch has begun already."""
        self._detour.handler = self._handler
        self._function.__code__ = self._detour.diverting
        self._function.__dict__[_DISABLED] = True

    def end(self) -> None:
        """Give the function its own code again."""
        self._function.__code__ = self._detour.code
        if self._was_disabled is None:
            self._function.__dict__.pop(_DISABLED, None)
        if self._detour.handler is self._handler:
            self._detour.handler = None


class _Detour:
    """What it takes to divert one function; it serves one patch after the other.

    Attributes:
        code: the function's own.
        original: a function with that code, for the handler.
        diverting: the code that leads here.
        handler: where calls go; without one, as at the very end of a patch, to the original.
    """

    __slots__ = ("code", "diverting", "handler", "original")

    def __init__(self, function: FunctionType) -> None:
        self.code = function.__code__
        self.handler: Handler | None = None
        self.original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        template = _diverting_code(len(self.code.co_freevars))
        self.diverting = template.replace(
            co_consts=tuple(self.divert if c == _DIVERT else c for c in template.co_consts),
            # Dynamo goes by it: it does not compile frames of torch.distributed.
            co_filename=self.code.co_filename,
            co_firstlineno=self.code.co_firstlineno,
            co_name=function.__name__,
        )

    def fits(self, function: FunctionType) -> bool:
        """Whether the function is what it was, and nobody diverts it now."""
        original = self.original
        return (
            function.__code__ is self.code
            and function.__defaults__ is original.__defaults__
            and function.__kwdefaults__ is original.__kwdefaults__
            and self.handler is None
        )

    def divert(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handler = self.handler
        before = _set_eval_frame(None)
        try:
            if handler is None:
                return self.original(*args, **kwargs)
            return handler(self.original, args, kwargs)
        finally:
            _set_eval_frame(before)


# To make one takes as long as a small operation of torch, and each step needs dozens.
_detours: weakref.WeakKeyDictionary[FunctionType, _Detour] = weakref.WeakKeyDictionary()


def _detour_of(function: FunctionType) -> _Detour:
    detour = _detours.get(function)
    if detour is not None and detour.fits(function):
        return detour
    made = _Detour(function)
    # One that is in use serves again when it is free; what no longer fits is of no use.
    if detour is None or detour.handler is None:
        _detours[function] = made
    return made


_DIVERT = "divert"
# What Dynamo does not trace into; those functions that it replaces as a whole it still does.
_DISABLED = "_torchdynamo_disable"


@functools.cache
def _diverting_code(cells: int) -> CodeType:
    """Return code that calls its constant `_DIVERT`, which is still to be put in.

    A function keeps its globals and its closure, so the way to the handler must lie in the code
    itself, and the code must have as many free variables as the one it stands in for.
    """
    names = "".join(f"cell{number}, " for number in range(cells))
    source = (
        f"def outer({names}):\n"
        "  def inner(*args, **kwargs):\n"
        f"    ({names})\n"
        f"    divert = {_DIVERT!r}\n"
        "    return divert(args, kwargs)\n"
    )
    code = compile(source, __file__, "exec", dont_inherit=True)
    for _ in range(2):
        code = next(const for const in code.co_consts if isinstance(const, CodeType))
    return code


def hide_from_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile from compiling what runs inside a function, and the function itself.

    `torch.compiler.disable` does so too, but takes seconds to import even if nothing is compiled.
    """

    def hidden(*args: Any, **kwargs: Any) -> Any:
        before = _set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(before)

    skip_in_dynamo(hidden)
    return hidden


def skip_in_dynamo(function: Callable[..., Any]) -> None:
    """Keep torch.compile from compiling a function; what it calls may still be compiled."""
    dynamo: Any = torch._C._dynamo.eval_frame
    assert isinstance(function, FunctionType)
    function.__dict__[_DISABLED] = True
    code = function.__code__
    if hasattr(dynamo, "set_code_exec_strategy"):
        actions = dynamo._FrameAction
        # Not what it calls: Dynamo would set its callback aside for the time of the function, which
        # then finds none where it exchanges it, and whoever puts it back later leaves Dynamo off.
        strategy = dynamo._FrameExecStrategy(actions.SKIP, actions.DEFAULT)
        dynamo.set_code_exec_strategy(code, strategy)
    elif hasattr(dynamo, "skip_code"):
        dynamo.skip_code(code)


skip_in_dynamo(_Detour.divert)
