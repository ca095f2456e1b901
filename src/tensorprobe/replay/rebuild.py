"""Make a recorded call again: its function, and its arguments as the user wrote them.

    CallRecord ─► find_function: the function, on a list made from torch
               └► values ─► arguments; `load` makes each tensor, if there is room for it

What a dump cannot hold (a generator, a function, another tensor class) cannot come back: the call
is refused with a `RebuildError` that names the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tensorprobe.errors import DumpError, RebuildError
from tensorprobe.names import API_TYPES
from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DictValue,
    DtypeValue,
    EllipsisValue,
    ListValue,
    MemoryFormatValue,
    ScalarValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.replay.bounds import require_bounded_result
from tensorprobe.replay.functions import find_function, parse_api_call
from tensorprobe.replay.memory import require_room
from tensorprobe.replay.reach import require_inside_storage
from tensorprobe.replay.recorded import tensor_values
from tensorprobe.replay.refusals import REFUSALS
from tensorprobe.store.dump import RankDump
from tensorprobe.summary.host import from_host

__all__ = ["RebuiltCall", "find_dtype", "load_tensor", "rebuild_call"]

Load = Callable[[TensorValue], torch.Tensor]

# Methods that move a tensor to the device that they are named for.
_MOVES = frozenset(("cpu", "cuda", "hpu", "ipu", "mps", "mtia", "npu", "xla", "xpu"))
_CHECKED = {"check_invariants": True, "unsafe": False}
_INDEXING = frozenset(("__getitem__", "__setitem__", "__delitem__"))
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "complex": complex,
    "str": str,
}
_PYTHONS = frozenset(_SCALARS.values())
# Their bits mean something only together with a scale, or eight of them with a packing.
_NOT_NUMBERS = frozenset(
    dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and name.startswith(("bits", "qint", "quint"))
)


@dataclass(frozen=True, slots=True)
class RebuiltCall:
    """A call that can be made: `function(*args, **kwargs)`.

    Attributes:
        function: what is called.
        args: its arguments in order.
        kwargs: those that were given by name.
        path: how a script names the function.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    path: str = ""

    def run(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.kwargs)


def rebuild_call(
    call: CallRecord, load: Load, *, device: str | torch.device = "cpu", is_made: bool = True
) -> RebuiltCall:
    """Return a recorded call with its function and arguments.

    Args:
        call: a forward record, or an operator's record of any direction.
        load: makes the tensor that a value describes; asked once for each, in the order of the
            arguments, positional before named.
        device: every device among the arguments becomes this one.
        is_made: whether the call will be made, so that its result must have room; torch may be
            asked for that, which makes the call without data. Only a worker process does so.

    Raises:
        RebuildError: the function is not known here, or an argument is not in the dump.
    """
    if call.inputs is None:
        raise RebuildError("the dump holds no inputs of this call; capture with data_mode all")
    name = parse_api_call(call.name)
    builder = _Builder(load, torch.device(device), _output_dtype(call))
    if name.api_type == "Tensor" and name.api_name in _MOVES and call.inputs:
        moved = (builder.build(call.inputs[0], "input.0"), torch.device(device))
        return RebuiltCall(torch.Tensor.to, moved, {}, "torch.Tensor.to")
    function, path = find_function(name.api_type, name.api_name)
    require_room((value.shape for value in tensor_values(call)), "its inputs")
    inputs = call.inputs
    if name.api_name in _INDEXING and len(inputs) > 1:
        inputs = (inputs[0], _as_index(call), *inputs[2:])
    args = tuple(builder.build(value, f"input.{i}") for i, value in enumerate(inputs))
    kwargs = {
        key: builder.build(value, f"input.{key}", is_device=key == "device")
        for key, value in (call.kwargs or {}).items()
        if not _is_default(key, value)
    }
    if name.api_type == "Tensor" and name.api_name == "to" and len(args) > 1:
        args = (args[0], builder.moved(args[1]), *args[2:])
    # What torch checks unless it is told not to is checked.
    kwargs.update((key, value) for key, value in _CHECKED.items() if key in kwargs)
    if is_made:
        require_inside_storage(name.api_name, args, kwargs)
        if name.api_type in API_TYPES:
            # A function of the user's own may have effects, so it is called no more than needed.
            require_bounded_result(name.api_name, function, args, kwargs)
    return RebuiltCall(function, args, kwargs, path)


def load_tensor(part: RankDump, value: TensorValue) -> torch.Tensor:
    """Return the recorded data of a tensor on the CPU, bit for bit in its own dtype.

    Args:
        part: the dump.
        value: which tensor.

    Raises:
        RebuildError: there is no data, or it cannot be read; the message is the reason.
    """
    try:
        data = part.load(value)
        if tuple(data.shape) != value.shape:
            raise RebuildError(
                f"the data file {value.data_name} holds the shape {list(data.shape)}, the dump "
                f"says {list(value.shape)}"
            )
        require_room((value.shape,), f"the data file {value.data_name}")
        tensor = from_host(data)
        # ptdbg_ascend keeps bfloat16 as float32, which holds the same numbers.
        return tensor if str(tensor.dtype) == value.dtype else tensor.to(find_dtype(value.dtype))
    except DumpError as err:
        raise RebuildError(str(err)) from err
    except REFUSALS as err:
        raise RebuildError(
            f"the data file {value.data_name} is no {value.dtype} of this torch: {err}"
        ) from err


# Of these tensors a dump has the numbers and not where they stood, or what stood for them.
_VALUES_ALONE = ("sparse_", "nested ", "quantized ", "bytes of ")
# The call did not see a dimension that is in the data.
_BATCHED = "BatchedTensor"


class _Builder:
    """Turns values into arguments.

    Args:
        load: makes tensors.
        device: what every device becomes.
        output_dtype: the dtype of the call's first result, where it has one.
    """

    def __init__(self, load: Load, device: torch.device, output_dtype: str | None) -> None:
        self._load = load
        self._device = device
        self._output_dtype = output_dtype

    def build(self, value: Value, place: str, *, is_device: bool = False) -> Any:
        """Return what a value stands for; `place` says where, for the reader of an error."""
        if isinstance(value, DeviceValue) or (is_device and value is not None):
            return self._device
        match value:
            case None:
                return None
            case TensorValue(form=str(form)) if form.startswith(_VALUES_ALONE):
                raise RebuildError(f"the dump holds only the values of {place}, which was {form}")
            case TensorValue(form=str(form)) if _BATCHED in form:
                raise RebuildError(f"{place} was a batch of torch.func.vmap, {form}")
            case TensorValue():
                return self._load(value)
            case ScalarValue():
                return _scalar(value, place)
            case SliceValue(start, stop, step):
                return slice(start, stop, step)
            case EllipsisValue():
                return ...
            case SizeValue(dims):
                return torch.Size(dims)
            case DtypeValue(name):
                return find_dtype(name)
            case MemoryFormatValue(name):
                return _memory_format(name)
            case ListValue(items, is_tuple):
                built = [self.build(item, f"{place}.{i}") for i, item in enumerate(items)]
                return tuple(built) if is_tuple else built
            case DictValue(()) if self._output_dtype is not None:
                # msprobe loses a dtype that is given in order; the result shows which it was.
                return find_dtype(self._output_dtype)
            case DictValue(items):
                return {key: self.build(item, f"{place}.{key}") for key, item in items}
            case UnknownValue(type_name, text):
                detail = f" ({text})" if text else ""
                raise RebuildError(f"the dump does not hold {place}, a {type_name}{detail}")
            case _:
                raise RebuildError(f"{place} is a {type(value).__name__}, which needs other ranks")

    def moved(self, argument: Any) -> Any:
        """Return what `Tensor.to` is given: a text there is a device."""
        return self._device if isinstance(argument, str) else argument


def _scalar(value: ScalarValue, place: str) -> Any:
    kind = _SCALARS.get(value.type_name) or vars(np).get(value.type_name)
    if kind in _PYTHONS or (isinstance(kind, type) and issubclass(kind, (np.number, np.bool_))):
        try:
            return kind(value.value)  # type: ignore[arg-type]
        except (ArithmeticError, TypeError, ValueError) as err:
            raise RebuildError(
                f"{place} is said to be of type {value.type_name} and cannot be: {err}"
            ) from err
    if isinstance(value.value, (bool, int, float, str)) and value.type_name != "function":
        # A subclass of a number or text; its value is what torch looks at.
        return value.value
    raise RebuildError(f"the dump does not hold {place}, a {value.type_name}")


def find_dtype(name: str) -> torch.dtype:
    """Return the dtype that a dump names.

    >>> find_dtype("torch.float16"), find_dtype("int8")
    (torch.float16, torch.int8)

    Raises:
        RebuildError: this torch has none of that name, or tensors of it are not plain numbers.
    """
    # Asked for by getattr, torch would import a module of that name.
    dtype = vars(torch).get(name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype) or dtype in _NOT_NUMBERS:
        raise RebuildError(f"this torch has no dtype {name or 'without a name'} for numbers")
    return dtype


def _memory_format(name: str) -> torch.memory_format:
    found = vars(torch).get(name.removeprefix("torch."))
    if not isinstance(found, torch.memory_format):
        raise RebuildError(f"this torch has no memory format {name}")
    return found


def _is_default(key: str, value: Value) -> bool:
    """Whether a keyword that a dump cannot hold may be left out: the layout of plain tensors."""
    return key == "layout" and value == UnknownValue("layout", "torch.strided")


def _output_dtype(call: CallRecord) -> str | None:
    first = call.outputs[0] if call.outputs else None
    return first.dtype if isinstance(first, TensorValue) else None


def _as_index(call: CallRecord) -> Value:
    """Return the index of `x[…]`, a tuple again where an older tool wrote a list.

    `x[0, 1]` and `x[[0, 1]]` look the same there; the shape of the result tells them apart.
    """
    assert call.inputs is not None
    tensor, index = call.inputs[0], call.inputs[1]
    if not isinstance(index, ListValue) or index.is_tuple or not index.items:
        return index
    is_all_ints = all(isinstance(item, ScalarValue) for item in index.items)
    if not is_all_ints:
        return replace(index, is_tuple=True)
    result = call.outputs[0] if call.outputs else None
    if isinstance(tensor, TensorValue) and isinstance(result, TensorValue):
        rest = tensor.shape[len(index.items) :]
        is_tuple = len(index.items) <= len(tensor.shape) and result.shape == rest
        return replace(index, is_tuple=is_tuple)
    return index
