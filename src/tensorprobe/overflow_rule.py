"""When a call overflowed, told from the largest and smallest element of what went in and came out.

    finite in, not finite out          the call made an infinity or a NaN
    below the limit in, at it out      the call was cut off at the largest number of its dtype

What a call was given counts whole: tensors, parameters and plain numbers. A mask filled with -inf
has an infinite input, and one filled with the smallest number of its dtype an input at the limit;
neither is an overflow. What only moves numbers, or returns memory as it was found, makes none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from tensorprobe.dtypes import DTYPES
from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, CallName, parse_call
from tensorprobe.operations.facts import OVERWRITING, UNINITIALISED

__all__ = [
    "LARGEST",
    "Extent",
    "OverflowKind",
    "can_overflow",
    "find_overflow",
    "is_nonfinite",
    "limit_reached",
    "overwritten_places",
]

OverflowKind = Literal["nonfinite", "saturated"]

# Powers of two (e8m0) scale blocks of other numbers; nothing is computed in them.
LARGEST: dict[str, float] = {
    name: dtype.largest
    for name, dtype in DTYPES.items()
    if dtype.kind == "float" and dtype.variant != "e8m0"
}
"""The largest finite number of each real dtype that results are computed in."""


class Extent(NamedTuple):
    """The dtype of one tensor or number, and its largest and smallest element."""

    dtype: str
    max: Any
    min: Any


def is_nonfinite(extent: Extent) -> bool:
    """Whether an infinity or a NaN is among the elements.

    >>> is_nonfinite(Extent("torch.float16", math.inf, 0.0))
    True
    >>> is_nonfinite(Extent("torch.int64", 3, 0)), is_nonfinite(Extent("torch.float32", None, None))
    (False, False)
    """
    return any(
        isinstance(number, float) and not math.isfinite(number)
        for number in (extent.max, extent.min)
    )


def limit_reached(extent: Extent) -> float | None:
    """Return the largest number of the dtype if an element has reached it, with either sign.

    >>> limit_reached(Extent("torch.float16", 65504.0, 1.0))
    65504.0
    """
    limit = LARGEST.get(extent.dtype)
    return limit if limit is not None and _touches(extent, limit) else None


def find_overflow(inputs: Iterable[Extent], outputs: Iterable[Extent]) -> OverflowKind | None:
    """Return how a call overflowed; None if it did not, or only passed on what it was given.

    >>> zero, infinite = Extent("torch.float32", 0.0, 0.0), Extent("torch.float32", 0.0, -math.inf)
    >>> find_overflow([zero], [infinite]), find_overflow([infinite], [infinite])
    ('nonfinite', None)
    """
    made = list(outputs)
    makes_nonfinite = any(map(is_nonfinite, made))
    limits = {limit for limit in map(limit_reached, made) if limit is not None}
    if not makes_nonfinite and not limits:
        return None
    given = list(inputs)
    if any(map(is_nonfinite, given)):
        return None
    if makes_nonfinite:
        return "nonfinite"
    is_new = any(not any(_touches(extent, limit) for extent in given) for limit in limits)
    return "saturated" if is_new else None


def can_overflow(name: str) -> bool:
    """Whether a call computes anything.

    >>> can_overflow("Torch.empty.0.forward"), can_overflow("Distributed.broadcast.0.forward")
    (False, False)
    >>> can_overflow("Distributed.all_reduce.0.forward"), can_overflow("Aten.exp.0.forward")
    (True, True)
    """
    call = _parsed(name)
    if not isinstance(call, ApiCall):
        return True
    if call.api_type == "Distributed":
        return "reduce" in call.api_name
    return call.api_name not in UNINITIALISED


def overwritten_places(name: str) -> frozenset[str]:
    """Return where a call's arguments stand whose values it does not read.

    >>> sorted(overwritten_places("Tensor.copy_.0.forward"))
    ['input.0', 'input.out', 'kwargs.out']
    """
    call = _parsed(name)
    is_forward = isinstance(call, ApiCall) and call.direction == "forward"
    if not isinstance(call, ApiCall) or not is_forward:
        return frozenset()
    places = {"input.out", "kwargs.out"}
    if call.api_name in OVERWRITING:
        places.add("input.0")
    return frozenset(places)


def _parsed(name: str) -> CallName | None:
    try:
        return parse_call(name)
    except NameFormatError:
        return None


def _touches(extent: Extent, limit: float) -> bool:
    return bool(extent.max == limit or extent.min == -limit) or bool(
        extent.max == -limit or extent.min == limit
    )
