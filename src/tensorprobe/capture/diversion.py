"""Send the calls of a function to a handler while the function stays the object that it is.

A name that was imported long before is seen, and whoever compares the function with itself finds it
equal: the code inside is exchanged, and put back at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

__all__ = ["Diversion", "Handler", "hide_from_dynamo", "skip_in_dynamo"]

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Diversion:
    """Sends the calls of one function to a handler, while the function stays the same object."""

    def __init__(self, function: FunctionType, handler: Handler) -> None:
        self._function = function
        self._code = function.__code__
        original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        original.__kwdefaults__ = function.__kwdefaults__

        divert = hide_from_dynamo(functools.partial(handler, original))
        template = _diverting_code(len(self._code.co_freevars))
        self._diverting = template.replace(
            co_consts=tuple(divert if c == _DIVERT else c for c in template.co_consts),
            # Dynamo goes by it: it does not compile frames of torch.distributed.
            co_filename=self._code.co_filename,
            co_firstlineno=self._code.co_firstlineno,
            co_name=function.__name__,
        )
        self._was_disabled = function.__dict__.get(_DISABLED)
        self.begin()

    def begin(self) -> None:
        """Divert the calls; a new diversion has begun already."""
        self._function.__code__ = self._diverting
        self._function.__dict__[_DISABLED] = True

    def end(self) -> None:
        """Give the function its own code again."""
        self._function.__code__ = self._code
        if self._was_disabled is None:
            self._function.__dict__.pop(_DISABLED, None)


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
    dynamo: Any = torch._C._dynamo.eval_frame

    def hidden(*args: Any, **kwargs: Any) -> Any:
        before = dynamo.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            dynamo.set_eval_frame(before)

    skip_in_dynamo(hidden)
    return hidden


def skip_in_dynamo(function: Callable[..., Any]) -> None:
    """Keep torch.compile from compiling a function; what it calls may still be compiled."""
    dynamo: Any = torch._C._dynamo.eval_frame
    assert isinstance(function, FunctionType)
    function.__dict__[_DISABLED] = True
    code = function.__code__
    if hasattr(dynamo, "set_code_exec_strategy"):
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))
    elif hasattr(dynamo, "skip_code"):
        dynamo.skip_code(code)
