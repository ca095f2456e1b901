"""Put signals' handlers off while something is done that must not stop half-way.

A handler of Python's may raise, as Ctrl-C does, between any two steps: between a file that was made
and the line that remembers it, or between a record that was taken and the file that it goes to.
What it raises is no trouble of ours, whatever class it has, and goes on to the program.
"""

from __future__ import annotations

# What `signal` is made of: that looks for names of the handlers, which takes 50 us.
import _signal as plain_signal  # type: ignore[import-not-found]
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from inspect import CO_VARARGS
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

__all__ = ["is_raised_by_handler", "uninterrupted"]

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")

# Those that end, warn or wake a run; a system may lack some.
_NUMBERS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if hasattr(signal, name)
]
# Handlers run in the main thread alone.
_is_held = False


class uninterrupted:  # noqa: N801 - read as a word of the language
    """Let the handlers of signals wait until the block ends; who sends one twice is not kept.

    >>> steps = []
    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         steps.append("all of it is done")
    ... except KeyboardInterrupt:
    ...     steps.append("and then it ends")
    >>> steps
    ['all of it is done', 'and then it ends']
    """

    # Not a generator: a step of a captured training enters hundreds of these.
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None

    def __enter__(self) -> None:
        global _is_held
        if _is_held or threading.current_thread() is not threading.main_thread():
            return
        waiting = self._waiting = _Waiting()
        try:
            _is_held = True
            waiting.begin()
        except BaseException:
            _is_held = False
            waiting.end()
            raise

    def __exit__(self, *raised: object) -> None:
        global _is_held
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _is_held = False
            waiting.end()

    def __call__(self, function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
        """Return a function all of whose calls are such blocks."""

        @wraps(function)
        def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
            with uninterrupted():
                return function(*args, **kwargs)

        return run


def is_raised_by_handler(err: BaseException) -> bool:
    """Whether a signal's handler raised an exception, whatever it interrupted.

    It is known by its code or, if it was taken off since, by what it was given: no other function
    gets the frame of its own caller, here the one that was interrupted.
    """
    handlers = map(plain_signal.getsignal, plain_signal.valid_signals())
    codes = [_code_of(handler) for handler in handlers if callable(handler)]
    trace = err.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if any(code is frame.f_code for code in codes):
            return True
        if frame.f_back is not None and any(one is frame.f_back for one in _arguments_of(frame)):
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        # An object whose class says how it is called.
        function = type(handler).__call__
    return getattr(function, "__code__", None)


def _arguments_of(frame: FrameType) -> list[Any]:
    values, code = frame.f_locals, frame.f_code
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given.extend(rest if isinstance(rest, tuple) else ())
    return given


class _Waiting:
    """Stands in the place of handlers, and remembers which of them are to be called."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[int] = []
        self._is_over = False

    def begin(self) -> None:
        for number in _NUMBERS:
            handler = plain_signal.getsignal(number)
            # The system's own end the process at once, or do nothing.
            if callable(handler):
                self._handlers[number] = handler
                plain_signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # One that was interrupted at its end may have left this in its place.
        if self._is_over or number in self._came:
            self._handlers[number](number, frame)
        else:
            self._came.append(number)

    def end(self) -> None:
        self._is_over = True
        for number, handler in self._handlers.items():
            # Somebody in the block may have put another one there.
            if plain_signal.getsignal(number) is self:
                plain_signal.signal(number, handler)
        for number in self._came:
            self._handlers[number](number, sys._getframe())
