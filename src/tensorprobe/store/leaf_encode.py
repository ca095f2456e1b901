"""Write a call record as the JSON entry that the older tools read.

What their format cannot say is added where they do not look (see `layout.TUPLES_KEY`).
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from tensorprobe.names import kind_of_call
from tensorprobe.records import (
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    Number,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store.layout import DEFAULTS_KEY, FORM_KEY, TUPLES_KEY, UNKNOWN_KEY
from tensorprobe.system.extensions import load_compiled

__all__ = [
    "EncodableCall",
    "EncodesItself",
    "encode_call",
    "encode_tensor",
    "encode_value",
    "read_drafts",
    "text_of_data_name",
]


class EncodesItself:
    """A value of a record that is known only when its text is asked for."""

    __slots__ = ()

    def as_json(self) -> str:
        """Return the value's JSON form."""
        raise NotImplementedError


class EncodableCall(Protocol):
    """What a `CallRecord` holds, for whoever makes records by the thousand in a form of its own."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def inputs(self) -> tuple[Value, ...] | None: ...  # noqa: D102
    @property
    def kwargs(self) -> Mapping[str, Value] | None: ...  # noqa: D102
    @property
    def outputs(self) -> tuple[Value, ...] | None: ...  # noqa: D102
    @property
    def parameters(self) -> Mapping[str, Value] | None: ...  # noqa: D102
    @property
    def saved(self) -> tuple[Value] | None: ...  # noqa: D102
    @property
    def is_recompute(self) -> bool | None: ...  # noqa: D102
    @property
    def defaults(self) -> Mapping[str, Value] | None: ...  # noqa: D102


def encode_call(call: EncodableCall) -> str:
    """Return the JSON entry of a call, its keys in the order of the older tools.

    The text is put together by hand: most of it is tensors, which all look alike, and every call
    of a training pays for it.

    >>> from tensorprobe.records import CallRecord
    >>> call = CallRecord("Torch.neg.0.forward", inputs=(ScalarValue("int", 1),), outputs=(None,))
    >>> encode_call(call)
    '{"input_args": [{"type": "int", "value": 1}], "output": [null]}'
    """
    if call.saved is not None:
        return encode_value(call.saved[0])
    kind, direction = kind_of_call(call.name)
    if kind == "gradients":
        return _object((key, f"[{encode_value(v)}]") for key, v in (call.parameters or {}).items())
    is_module = kind == "module"
    is_backward = direction == "backward"
    if _compiled is not None and not call.defaults:
        text: str | None = _compiled.call_text(call, is_module, is_backward)
        if text is not None:
            return text
    inputs, kwargs, outputs = call.inputs, call.kwargs, call.outputs
    parts: list[str] = []
    if inputs is not None:
        parts.append(('"input": ' if is_backward else '"input_args": ') + _array(inputs))
    if kwargs is not None:
        parts.append('"input_kwargs": ' + _named(kwargs))
    recompute = '"is_recompute": true' if call.is_recompute else '"is_recompute": false'
    if not is_module and call.is_recompute is not None:
        parts.append(recompute)
    if outputs is not None:
        parts.append('"output": ' + _array(outputs))
    if call.parameters is not None:
        parts.append('"parameters": ' + _named(call.parameters))
    if is_module and call.is_recompute is not None:
        parts.append(recompute)
    if not (
        _is_flat(inputs or ()) and _is_flat(outputs or ()) and _is_flat((kwargs or {}).values())
    ):
        tuples = list(_tuple_paths(call))
        if tuples:
            parts.append(f'"{TUPLES_KEY}": {_text(tuples)}')
    if call.defaults:
        parts.append(f'"{DEFAULTS_KEY}": {_named(call.defaults)}')
    return "{" + ", ".join(parts) + "}"


def encode_value(value: Value) -> str:
    """Return the JSON form of one value.

    >>> encode_value(SliceValue(None, 3, None))
    '{"type": "slice", "value": [null, 3, null]}'
    """
    if type(value) is ScalarValue:
        return _scalar(value)
    if isinstance(value, EncodesItself):
        return value.as_json()
    if value is None:
        return "null"
    match value:
        case TensorValue():
            return encode_tensor(*_fields_of_tensor(value))
        case ListValue(items):
            return _array(items)
        case DictValue(pairs):
            return _object((key, encode_value(item)) for key, item in pairs)
        case PeerOpValue(op, peer, tag, group_id, tensor):
            return (
                f'{{"class_type": "torch.distributed.P2POp", "tensor": {encode_value(tensor)}, '
                f'"op": {_text(op)}, "peer": {_text(peer)}, "tag": {_text(tag)}, '
                f'"group_id": {_text(group_id)}}}'
            )
        case _:
            return _text(_simple(value))


def _scalar(value: ScalarValue) -> str:
    number = value.value
    if type(number) is int:
        # The encoder has a quick way for texts alone.
        if value.type_name == "int":
            return f'{{"type": "int", "value": {number!r}}}'
        text = repr(number)
    else:
        text = _text(str(number) if isinstance(number, complex) else number)
    return f'{{"type": {_text(value.type_name)}, "value": {text}}}'


def _simple(value: Value) -> dict[str, Any]:
    match value:
        case SliceValue(start, stop, step):
            return {"type": "slice", "value": [start, stop, step]}
        case EllipsisValue():
            return {"type": "ellipsis", "value": "..."}
        case SizeValue(dims):
            return {"type": "torch.Size", "value": list(dims)}
        case DtypeValue(name):
            return {"type": "torch.dtype", "value": name}
        case DeviceValue(name):
            return {"type": "torch.device", "value": name}
        case MemoryFormatValue(name):
            return {"type": "torch.memory_format", "format": name}
        case GroupValue(ranks, group_id):
            return {
                "type": "torch.ProcessGroup",
                "group_ranks": list(ranks),
                "group_id": group_id,
            }
        case ReduceOpValue(name):
            return {"type": "torch.distributed.ReduceOp", "value": name}
        case UnknownValue(type_name, text):
            return {"type": type_name, "value": text, UNKNOWN_KEY: True}
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def text_of_data_name(data_name: str) -> str:
    """Return how a tensor's record names the file with its data, behind other keys."""
    return f', "data_name": {_text(data_name)}'


def encode_tensor(
    dtype: str,
    shape: tuple[int, ...],
    high: Number | None,
    low: Number | None,
    mean: Number | None,
    norm: Number | None,
    requires_grad: bool | None,
    checksum: str | None,
    data_name: str | None,
    finite_high: Number | None = None,
    finite_low: Number | None = None,
    form: str | None = None,
) -> str:
    """Return the JSON form of a tensor, from what a `TensorValue` holds."""
    head = _tensor_head(dtype, shape)
    # Four finite floats, nearly always; `inf - inf` is no zero.
    if type(high) is type(low) is type(mean) is type(norm) is float and (
        (total := high + low + mean + norm) - total == 0.0
    ):
        text = f'{head}{high!r}, "Min": {low!r}, "Mean": {mean!r}, "Norm": {norm!r}'
    else:
        text = (
            f'{head}{_text(high)}, "Min": {_text(low)}, '
            f'"Mean": {_text(mean)}, "Norm": {_text(norm)}'
        )
    if requires_grad is not None:
        text += ', "requires_grad": true' if requires_grad else ', "requires_grad": false'
    if data_name is not None:
        text += text_of_data_name(data_name)
    if checksum is not None:
        text += f', "md5": {_text(checksum)}'
    if finite_high is not None:
        text += f', "Max_finite": {_text(finite_high)}'
    if finite_low is not None:
        text += f', "Min_finite": {_text(finite_low)}'
    if form is not None:
        text += f', "{FORM_KEY}": {_text(form)}'
    return text + "}"


_fields_of_tensor = operator.attrgetter(
    "dtype", "shape", "max", "min", "mean", "norm", "requires_grad", "checksum", "data_name",
    "finite_max", "finite_min", "form",
)  # fmt: skip


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a numpy number; anything else as its text."""
    return value.item() if isinstance(value, np.generic) else str(value)


_text = json.JSONEncoder(default=_plain).encode
_NESTED: frozenset[type] = frozenset((ListValue, DictValue))


@functools.lru_cache(maxsize=4096)
def _tensor_head(dtype: str, shape: tuple[int, ...]) -> str:
    # A step has few dtypes and shapes, each of them many times.
    head = {"type": "torch.Tensor", "dtype": dtype, "shape": shape}
    return f'{_text(head)[:-1]}, "Max": '


def _array(values: Iterable[Value]) -> str:
    # Nearly all are tensors that know their own text.
    texts = [v.as_json() if isinstance(v, EncodesItself) else encode_value(v) for v in values]
    return "[" + ", ".join(texts) + "]"


def _named(values: Mapping[str, Value]) -> str:
    if not values:
        return "{}"
    return _object((key, encode_value(value)) for key, value in values.items())


def _object(pairs: Iterable[tuple[str, str]]) -> str:
    # A key that comes twice counts once, as in a dict.
    return "{" + ", ".join(f"{_text(key)}: {text}" for key, text in dict(pairs).items()) + "}"


def _is_flat(values: Iterable[Value]) -> bool:
    return _NESTED.isdisjoint(map(type, values))


def _tuple_paths(call: EncodableCall) -> Iterator[list[str]]:
    sections = (
        ("input", enumerate(call.inputs or ())),
        ("kwargs", (call.kwargs or {}).items()),
        ("output", enumerate(call.outputs or ())),
    )
    for section, values in sections:
        for key, value in values:
            if type(value) in _NESTED:
                yield from _tuples_below([section, str(key)], value)


def _tuples_below(path: list[str], value: Value) -> Iterator[list[str]]:
    pairs: Iterator[tuple[Any, Value]]
    if isinstance(value, ListValue):
        if value.is_tuple:
            yield path
        pairs = enumerate(value.items)
    elif isinstance(value, DictValue):
        pairs = iter(value.items)
    else:
        return
    for key, item in pairs:
        yield from _tuples_below([*path, str(key)], item)


_compiled = load_compiled("tensorprobe.store._entry_text", "set_up", "tensor_text", "call_text")
if _compiled is not None:
    # Nothing is of exactly this class: until `read_drafts` every tensor is asked for its text.
    _compiled.set_up(EncodesItself, ListValue, DictValue, _tensor_head, encode_value, _text)


def read_drafts(
    draft_class: type[EncodesItself], dtype_name: Callable[[Any], str]
) -> Callable[[Any], str | None]:
    """Have the compiled encoder read tensors that are known only when their text is asked for.

    Args:
        draft_class: their class, with the attributes `measured.numbers`, `checked.value` or None,
            `file`, `dtype`, `shape`, `requires_grad` and `_text`, which keeps the text.
        dtype_name: returns the name of a `dtype`.

    Returns:
        What returns the text of one, or None if only Python knows it.
    """
    if _compiled is None:
        return lambda draft: None

    def head_of(dtype: Any, shape: tuple[int, ...]) -> str:
        return _tensor_head(dtype_name(dtype), shape)

    _compiled.set_up(draft_class, ListValue, DictValue, head_of, encode_value, _text)
    text_of: Callable[[Any], str | None] = _compiled.tensor_text
    return text_of
