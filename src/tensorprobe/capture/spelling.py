"""Give a call its arguments as the user wrote them.

A function of torch that is written in Python hands its call over with most arguments turned into
keywords, defaults included. How many were written in order, and which by name, stands in the
instruction that made the call; it is read once per place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch._jit_internal import boolean_dispatched

from tensorprobe.capture.operators import instructions_of

__all__ = ["as_spelled"]

# From torch's hand-over up to the user's frame there are a few frames of torch.
_MOST_FRAMES = 6

Spelling = tuple[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the arguments of a call are in what torch hands over: at a place, or under a name.

    Attributes:
        in_order: where those in order are.
        by_name: and those by name.
        left_out: what was not written, and so has its default.
    """

    in_order: tuple[int | str, ...]
    by_name: tuple[tuple[str, int | str], ...]
    left_out: tuple[tuple[int | str, object], ...]


# By the caller's code and the place in it, what is called, and how many arguments come in order. A
# code stands for itself by its id, its own hash is too slow; `instructions_of` keeps it alive.
_plans: dict[tuple[int, int, Callable[..., Any], int], _Plan | None] = {}
_NO_DEFAULT = object()
# The code of functions that may return indices, too; it passes on all that it is given.
_DISPATCH = torch.nn.functional.max_pool2d.__code__


def as_spelled(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    frame: FrameType | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in order and by name as they were written, if that can be told.

    Otherwise those by name that have their default are left out: torch may have put them there.

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
    if caller is not None and caller.f_code is _DISPATCH:
        caller = caller.f_back
    defaults = _defaults_of(function)
    if caller is None or defaults is None:
        return args, kwargs
    key = (id(caller.f_code), caller.f_lasti, function, len(args))
    if key not in _plans:
        spelling = _read_spelling(caller.f_code, caller.f_lasti)
        _plans[key] = None if spelling is None else _plan(defaults, len(args), spelling)
    return _follow(_plans[key], args, kwargs) or (
        args,
        {
            name: value
            for name, value in kwargs.items()
            if value is not defaults.get(name, _NO_DEFAULT)
        },
    )


def _follow(
    plan: _Plan | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments that a plan tells of; None where something else was called."""
    if plan is None:
        return None
    for at, default in plan.left_out:
        if (args[at] if isinstance(at, int) else kwargs.get(at, default)) is not default:
            # `functools.partial` and `map` are called with less than what they call.
            return None
    try:
        return (
            tuple([args[at] if isinstance(at, int) else kwargs[at] for at in plan.in_order]),
            {name: args[at] if isinstance(at, int) else kwargs[at] for name, at in plan.by_name},
        )
    except KeyError:
        # Somebody put another function between.
        return None


def _plan(defaults: dict[str, object], count: int, spelling: Spelling) -> _Plan | None:
    """Return where the arguments of a call are, of which so many are handed over in order."""
    names = tuple(defaults)
    in_order, keywords = spelling
    # `x.split(2)` does not count its x.
    in_order += names[:1] == ("self",)
    if in_order > len(names):
        return None
    places: dict[str, int | str] = {name: at for at, name in enumerate(names[:count])}
    written = {*names[:in_order], *keywords}
    return _Plan(
        tuple([places.get(name, name) for name in names[:in_order]]),
        tuple([(name, places.get(name, name)) for name in keywords]),
        tuple([(places.get(n, n), default) for n, default in defaults.items() if n not in written]),
    )


@cache
def _defaults_of(function: Callable[..., Any]) -> dict[str, object] | None:
    """Return the defaults of a function's parameters, by name, in order; None if some have none."""
    passed_on_to = boolean_dispatched.get(function, {}).get("if_false", function)
    parameters = inspect.signature(passed_on_to).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return {p.name: _NO_DEFAULT if p.default is p.empty else p.default for p in parameters}


def _read_spelling(code: CodeType, at: int) -> Spelling | None:
    instructions = [found for found in instructions_of(code).values() if found.offset <= at]
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
