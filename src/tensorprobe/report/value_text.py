"""One value as text, for a person's eyes and for JSON."""

from __future__ import annotations

import math
from typing import Any

from tensorprobe.records import (
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    Number,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)

__all__ = ["json_number", "number_text", "shape_text", "value_json", "value_text"]

_LONGEST_TEXT = 60


def number_text(number: Number | None, digits: int = 6) -> str:
    """Return a number in few digits.

    >>> number_text(0.123456789), number_text(None), number_text(float("nan")), number_text(True)
    ('0.123457', '-', 'nan', 'True')
    """
    if number is None:
        return "-"
    return f"{number:.{digits}g}" if isinstance(number, float) else str(number)


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as torch shows it.

    >>> shape_text((2, 3))
    '[2, 3]'
    """
    return str(list(shape))


def value_text(value: Value) -> str:
    """Return a value that is no tensor in one short piece of text.

    >>> value_text(SliceValue(1, None, None)), value_text(ScalarValue("str", "same"))
    ('1::', "'same'")
    """
    text = _plain_text(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def _plain_text(value: Value) -> str:
    match value:
        case None:
            return "None"
        case ScalarValue(_, plain):
            return repr(plain)
        case SliceValue(start, stop, step):
            parts = ("" if part is None else str(part) for part in (start, stop, step))
            return ":".join(parts)
        case EllipsisValue():
            return "..."
        case SizeValue(dims):
            return shape_text(dims)
        case GroupValue(ranks, group_id):
            return f"ranks {list(ranks)} (group {group_id})"
        case DtypeValue(name) | DeviceValue(name) | MemoryFormatValue(name) | ReduceOpValue(name):
            return name
        case UnknownValue(type_name, text):
            return f"{type_name} {text}".strip()
        case TensorValue(dtype, shape):
            return f"{dtype} {shape_text(shape)}"
        case ListValue():
            return "()" if value.is_tuple else "[]"
        case DictValue():
            return "{}"
        case _:
            return type(value).__name__


def json_number(number: Any) -> Any:
    """Return a number that strict JSON can hold; what is not finite becomes a text.

    >>> json_number(float("inf")), json_number(1 + 2j), json_number(3)
    ('Infinity', '(1+2j)', 3)
    """
    if isinstance(number, complex):
        return str(number)
    if not isinstance(number, float) or math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def value_json(value: Value) -> dict[str, Any]:
    """Return a value as a strict JSON object."""
    if isinstance(value, TensorValue):
        return {
            "type": "tensor",
            "dtype": value.dtype,
            "shape": list(value.shape),
            "max": json_number(value.max),
            "min": json_number(value.min),
            "mean": json_number(value.mean),
            "norm": json_number(value.norm),
            "requires_grad": value.requires_grad,
            "checksum": value.checksum,
            "data": value.data_name,
            "finite_max": json_number(value.finite_max),
            "finite_min": json_number(value.finite_min),
            "form": value.form,
        }
    if isinstance(value, ScalarValue):
        return {"type": value.type_name, "value": json_number(value.value)}
    if isinstance(value, UnknownValue):
        return {"type": value.type_name, "value": value.text or None}
    kind = "none" if value is None else type(value).__name__.removesuffix("Value").lower()
    return {"type": kind, "value": None if value is None else _plain_text(value)}
