"""Write a call record as the JSON entry that the older tools read.

What their format cannot say is added where they do not look (see `layout.TUPLES_KEY`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorprobe.names import ModuleCall, ParameterGradients, SavedValue, parse_call
from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    GroupValue,
    ListValue,
    MemoryFormatValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store.layout import FORM_KEY, TUPLES_KEY, UNKNOWN_KEY

__all__ = ["encode_call", "encode_value"]


def encode_call(call: CallRecord) -> Any:
    """Return the JSON entry of a call, its keys in the order of the older tools.

    >>> call = CallRecord("Torch.neg.0.forward", inputs=(ScalarValue("int", 1),), outputs=(None,))
    >>> encode_call(call)
    {'input_args': [{'type': 'int', 'value': 1}], 'output': [None]}
    """
    if call.saved is not None:
        return encode_value(call.saved[0])
    name = parse_call(call.name)
    if isinstance(name, ParameterGradients):
        return {key: [encode_value(v)] for key, v in (call.parameters or {}).items()}
    is_module = isinstance(name, ModuleCall)
    is_backward = not isinstance(name, SavedValue) and name.direction == "backward"
    entry: dict[str, Any] = {}
    if call.inputs is not None:
        entry["input" if is_backward else "input_args"] = [encode_value(v) for v in call.inputs]
    if call.kwargs is not None:
        entry["input_kwargs"] = {key: encode_value(v) for key, v in call.kwargs.items()}
    recompute = {} if call.is_recompute is None else {"is_recompute": call.is_recompute}
    if not is_module:
        entry |= recompute
    if call.outputs is not None:
        entry["output"] = [encode_value(v) for v in call.outputs]
    if call.parameters is not None:
        entry["parameters"] = {key: encode_value(v) for key, v in call.parameters.items()}
    if is_module:
        entry |= recompute
    tuples = list(_tuple_paths(call))
    if tuples:
        entry[TUPLES_KEY] = tuples
    return entry


def encode_value(value: Value) -> Any:
    """Return the JSON form of one value.

    >>> encode_value(SliceValue(None, 3, None))
    {'type': 'slice', 'value': [None, 3, None]}
    """
    match value:
        case None:
            return None
        case TensorValue():
            return _tensor(value)
        case ScalarValue(type_name, number):
            shown = str(number) if isinstance(number, complex) else number
            return {"type": type_name, "value": shown}
        case ListValue(items):
            return [encode_value(item) for item in items]
        case DictValue(pairs):
            return {key: encode_value(item) for key, item in pairs}
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
        case PeerOpValue(op, peer, tag, group_id, tensor):
            return {
                "class_type": "torch.distributed.P2POp",
                "tensor": encode_value(tensor),
                "op": op,
                "peer": peer,
                "tag": tag,
                "group_id": group_id,
            }
        case UnknownValue(type_name, text):
            return {"type": type_name, "value": text, UNKNOWN_KEY: True}


def _tensor(value: TensorValue) -> dict[str, Any]:
    leaf: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": value.dtype,
        "shape": list(value.shape),
        "Max": value.max,
        "Min": value.min,
        "Mean": value.mean,
        "Norm": value.norm,
    }
    if value.requires_grad is not None:
        leaf["requires_grad"] = value.requires_grad
    if value.data_name is not None:
        leaf["data_name"] = value.data_name
    if value.checksum is not None:
        leaf["md5"] = value.checksum
    if value.finite_max is not None:
        leaf["Max_finite"] = value.finite_max
    if value.finite_min is not None:
        leaf["Min_finite"] = value.finite_min
    if value.form is not None:
        leaf[FORM_KEY] = value.form
    return leaf


def _tuple_paths(call: CallRecord) -> Iterator[list[str]]:
    sections = (
        ("input", enumerate(call.inputs or ())),
        ("kwargs", (call.kwargs or {}).items()),
        ("output", enumerate(call.outputs or ())),
    )
    for section, values in sections:
        for key, value in values:
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
