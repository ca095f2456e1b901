"""Which number or text a leaf may hold, by the type that it says it is of.

A file can pair any type with any value: an `int` that is a text, an `int8` of 300, a `datetime64`.
Inside the house a `ScalarValue` is what Python or numpy can make of its type; everything else is an
`UnknownValue`, which is described and never used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from tensorprobe.records import ScalarValue, UnknownValue

__all__ = ["MOST_FLOAT", "MOST_WHOLE", "fits_float", "is_whole", "read_scalar", "shown"]

# Python turns no longer number into text, so that nothing could be said of it.
MOST_WHOLE = 10**4000
"""Whole numbers are below this, and so are their opposites."""

MOST_FLOAT = int(sys.float_info.max)
"""The largest whole number that is a float."""

_SHOWN = 100
# numpy's classes of what is neither a number nor a text, and those that only others are made of.
_NO_NUMBERS = frozenset(
    ("bytes_", "character", "complexfloating", "datetime64", "flexible", "floating", "generic",
     "inexact", "integer", "number", "object0", "object_", "record", "signedinteger", "string_",
     "timedelta64", "unicode_", "unsignedinteger", "void")
)  # fmt: skip
_FLOATS = frozenset(
    ("float", "float16", "float32", "float64", "float96", "float128", "float_", "half", "single",
     "double", "longdouble", "longfloat")
)  # fmt: skip
_COMPLEX = frozenset(
    ("complex", "complex64", "complex128", "complex192", "complex256", "complex_", "cfloat",
     "csingle", "cdouble", "clongdouble", "clongfloat", "longcomplex", "singlecomplex")
)  # fmt: skip
# The bits of numpy's whole numbers.
_SIGNED = {
    "byte": 8, "short": 16, "intc": 32, "int_": 64, "long": 64, "intp": 64, "longlong": 64,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64,
}  # fmt: skip
_UNSIGNED = {
    "ubyte": 8, "ushort": 16, "uintc": 32, "uint": 64, "ulong": 64, "uintp": 64, "ulonglong": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
}  # fmt: skip


def read_scalar(type_name: str, value: Any) -> ScalarValue | UnknownValue:
    """Return a number or text of a type, or what is known of it if the type has no such value.

    >>> read_scalar("int", 3), read_scalar("int8", 300)
    (ScalarValue(type_name='int', value=3), UnknownValue(type_name='int8', text='300'))
    """
    # What is not named is a subclass of a number or a text, such as an enumeration.
    fits = _FITTING.get(type_name, _is_plain)
    if type_name not in _NO_NUMBERS and fits(value):
        return ScalarValue(type_name, value)
    return UnknownValue(type_name, "" if value is None else shown(value))


def fits_float(value: Any) -> bool:
    """Whether a value is a number that a float can hold, be it with less digits.

    >>> fits_float(3), fits_float(10**400), fits_float(float("nan")), fits_float("3")
    (True, False, True, False)
    """
    if isinstance(value, int):
        return -MOST_FLOAT <= value <= MOST_FLOAT
    return isinstance(value, float)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number of which something can be said."""
    return isinstance(value, int) and -MOST_WHOLE < value < MOST_WHOLE


def shown(value: Any) -> str:
    """Return a value of a file for a message: short, whatever it is."""
    if isinstance(value, int) and not is_whole(value):
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # A number of thousands of digits somewhere in it.
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _is_plain(value: Any) -> bool:
    return is_whole(value) or isinstance(value, (float, complex, str))


def _is_within(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and low <= value <= high


_FITTING: dict[str, Callable[[Any], bool]] = {
    "int": is_whole,
    "bool": lambda value: isinstance(value, bool),
    "bool_": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "str_": lambda value: isinstance(value, str),
    **dict.fromkeys(_FLOATS, fits_float),
    **dict.fromkeys(_COMPLEX, lambda value: isinstance(value, complex) or fits_float(value)),
    **{name: _is_within(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in _SIGNED.items()},
    **{name: _is_within(0, 2**bits - 1) for name, bits in _UNSIGNED.items()},
}
