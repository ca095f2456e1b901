"""Hear of every compiled callable of torch that runs, before its compiled code and after it.

Whatever is compiled is entered through one wrapper of torch, which turns the frame evaluation of
Dynamo on and off again. Who listens there is told of both turns. Several may listen at once, and
stop in any order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from tensorprobe.capture.code_patch import CodePatch, skip_in_dynamo

__all__ = ["CompilerListener"]

_DYNAMO = "torch._dynamo.eval_frame"
_LISTENED = "set_eval_frame"
# The wrapper around everything that is compiled, newest name first.
_WRAPPERS = ("compile_wrapper", "_fn")


class CompilerListener:
    """Listens between `open` and `close`.

    Args:
        hear: is told of the wrapper's frame at each of its two turns.
        begin: is told of the wrapper's code once, when there is a compiler to listen to.
    """

    def __init__(
        self, hear: Callable[[FrameType], None], begin: Callable[[CodeType], None] | None = None
    ) -> None:
        self._hear = hear
        self._begin = begin
        self._first_compile: CodePatch | None = None
        self._listening: _Listening | None = None

    def open(self) -> None:
        """Start to listen, as soon as there is a compiler."""
        dynamo = sys.modules.get(_DYNAMO)
        if dynamo is not None:
            self._listen(dynamo)
        elif hasattr(torch, "compile"):
            # To import it takes a second or more, for something that may never be used.
            self._first_compile = CodePatch(torch.compile, self._on_first_compile)  # type: ignore[arg-type]

    def close(self) -> None:
        """Listen no more."""
        self._end_patch()
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.end()

    def _on_first_compile(
        self, compile_: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._end_patch()
        result = compile_(*args, **kwargs)
        dynamo = sys.modules.get(_DYNAMO)
        if dynamo is not None and self._listening is None:
            self._listen(dynamo)
        return result

    def _end_patch(self) -> None:
        if self._first_compile is not None:
            self._first_compile.end()
            self._first_compile = None

    def _listen(self, dynamo: ModuleType) -> None:
        code = _wrapper_code(dynamo)
        if code is None:
            # A torch that compiles in another way: it traces our watchers, which costs time only.
            return
        if self._begin is not None:
            self._begin(code)
        self._listening = _Listening(dynamo, code, self._hear)


class _Listening:
    """One listener in the place of torch's function; there may be others above and below it."""

    def __init__(
        self, dynamo: ModuleType, code: CodeType, hear: Callable[[FrameType], None]
    ) -> None:
        self._dynamo = dynamo
        self.is_over = False
        self.below: Any = getattr(dynamo, _LISTENED)

        def listening(callback: Any) -> Any:
            below = self.below
            frame = sys._getframe(1)
            while frame.f_code is listening.__code__ and frame.f_back is not None:
                # Another one's, above this one.
                frame = frame.f_back
            if self.is_over or frame.f_code is not code:
                return below(callback)
            # Nothing of ours may be compiled.
            prior = below(None)
            hear(frame)
            below(callback)
            return prior

        skip_in_dynamo(listening)
        listening.__dict__["listener"] = self
        self._function = listening
        setattr(dynamo, _LISTENED, listening)

    def end(self) -> None:
        """Take it out; where another one has come above it, that one takes it out at its end."""
        self.is_over = True
        if getattr(self._dynamo, _LISTENED) is not self._function:
            return
        below = self.below
        while getattr(getattr(below, "listener", None), "is_over", False):
            below = below.listener.below
        setattr(self._dynamo, _LISTENED, below)


def _wrapper_code(dynamo: ModuleType) -> CodeType | None:
    maker = vars(getattr(dynamo, "_TorchDynamoContext", object)).get("__call__")
    constants = getattr(getattr(maker, "__code__", None), "co_consts", ())
    codes = {code.co_name: code for code in constants if isinstance(code, CodeType)}
    return next((codes[name] for name in _WRAPPERS if name in codes), None)
