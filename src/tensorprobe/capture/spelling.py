"""Give a call its arguments as the user wrote them.

A function of torch that is written in Python hands its call over with most arguments turned into
keywords, defaults included. How many were written in order, and which by name, stands in the
instruction that made the call; it is read once per place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

from tensorprobe.capture.operators import instructions_of

__all__ = ["as_spelled"]

# From torch's hand-over up to the user's frame there are a few frames of torch.
_MOST_FRAMES = 6

Spelling = tuple[int, tuple[str, ...]]

# Where the arguments in order, and those by name, are in what torch hands over: at a place, or
# under a name.
_Plan = tuple[tuple["int | str", ...], tuple[tuple[str, "int | str"], ...]]

# By the caller's code and the place in it, what is called, and how many arguments come in order. A
# code stands for itself by its id, its own hash is too slow; `instructions_of` keeps it alive.
_plans: dict[tuple[int, int, Callable[..., Any], int], _Plan | None] = {}


def as_spelled(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    frame: FrameType | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in order and by name as they were written, if that can be told.

    Args:
        function: what was called.
        args: its arguments in order, as torch hands them over.
        kwargs: those by name.
        frame: from where the handler of a TorchFunctionMode was called.
    """
    if not kwargs or (code := getattr(function, "__code__", None)) is None:
        return args, kwargs
    for _ in range(_MOST_FRAMES):
        if frame is None or frame.f_code is code:
            break
        frame = frame.f_back
    caller = None if frame is None or frame.f_code is not code else frame.f_back
    if caller is None:
        return args, kwargs
    key = (id(caller.f_code), caller.f_lasti, function, len(args))
    if key not in _plans:
        spelling = _read_spelling(caller.f_code, caller.f_lasti)
        _plans[key] = None if spelling is None else _plan(function, len(args), spelling)
    plan = _plans[key]
    if plan is None:
        return args, kwargs
    in_order, by_name = plan
    try:
        return (
            tuple([args[at] if isinstance(at, int) else kwargs[at] for at in in_order]),
            {name: args[at] if isinstance(at, int) else kwargs[at] for name, at in by_name},
        )
    except KeyError:
        # Not what was written there: somebody put another function between.
        return args, kwargs


def _plan(function: Callable[..., Any], count: int, spelling: Spelling) -> _Plan | None:
    """Return where the arguments of a call are, of which so many are handed over in order."""
    names = _parameters_of(function)
    if names is None:
        return None
    in_order, keywords = spelling
    # `x.split(2)` does not count its x.
    in_order += names[:1] == ("self",)
    if in_order > len(names):
        return None
    places: dict[str, int | str] = {name: at for at, name in enumerate(names[:count])}
    return (
        tuple([places.get(name, name) for name in names[:in_order]]),
        tuple([(name, places.get(name, name)) for name in keywords]),
    )


@cache
def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's parameters; None if some have none."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def _read_spelling(code: CodeType, place: int) -> Spelling | None:
    instructions = [found for found in instructions_of(code).values() if found.offset <= place]
    if not instructions:
        return None
    call = instructions[-1]
    before = [found for found in instructions[:-1] if found.opname not in ("CACHE", "PRECALL")]
    last = before[-1] if before else None
    if call.arg is None or last is None:
        return None
    if call.opname in ("CALL_FUNCTION_KW", "CALL_KW"):
        keywords = last.argval
    elif call.opname == "CALL" and last.opname == "KW_NAMES":
        keywords = code.co_consts[last.arg or 0]
    elif call.opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
        keywords = ()
    else:
        # Unpacked with * or **: what was in them cannot be told.
        return None
    if not isinstance(keywords, tuple):
        return None
    return call.arg - len(keywords), keywords
