"""Read the pickle inside a `.pt` file as the data that it is; nothing in it is ever called.

torch.save writes one tensor as a small program for the pickle machine: fetch the rebuild function,
stack its arguments, call it. This module is its own pickle machine, in three parts: the opcodes
(`_Machine`), the globals (`_GLOBALS`: names become tokens, never objects) and the calls (`_CALLS`:
a token and its arguments become a `TensorPickle`). It does not use `pickle.Unpickler`: that one
allocates gigabytes for a memo index of 2**32 before any of our code sees it.

The pickle is hostile until shown otherwise. The machine stops after a fixed number of opcodes, and
every opcode allocates no more than a few times its own bytes.

More than 500 lines on purpose: who wants to know what a hostile pickle can do reads this one file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812  (an exception is named like one)
from typing import Any, Literal, NamedTuple

from tensorprobe.dtypes import DTYPES, DType
from tensorprobe.errors import TensorFileError, UnsafeFileError

__all__ = ["MAX_PICKLE_BYTES", "TensorPickle", "read_tensor_pickle", "shown"]

# One tensor takes about 200 bytes and 50 opcodes; attributes of a parameter may add to that.
MAX_PICKLE_BYTES = 1 << 18
_MAX_OPCODES = 20_000
_MAX_INTEGER = (1 << 63) - 1
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class TensorPickle:
    """What the pickle of one tensor says; the numbers are as found, not yet checked for bounds.

    Attributes:
        storage_key: the name of the record that holds the bytes, below `data/`.
        storage_dtype: the unit in which the storage counts; uint8 for an untyped storage.
        storage_numel: how many of these units it holds.
        device: where the tensor lived, `cpu` or `npu:0`.
        dtype: of the tensor.
        offset: of its first element, in elements.
        shape: the size of each dimension.
        stride: the step of each dimension, in elements.
        conj: whether the values are the conjugates of the stored ones.
        neg: whether the values are the negatives of the stored ones.
    """

    storage_key: str
    storage_dtype: DType
    storage_numel: int
    device: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conj: bool = False
    neg: bool = False


def read_tensor_pickle(pickle: bytes, *, where: str, cut: bool = False) -> TensorPickle:
    r"""Return what a pickle says about the one tensor that it holds, without running anything.

    >>> read_tensor_pickle(b"\x80\x02}.", where="a.pt")
    Traceback (most recent call last):
    tensorprobe.errors.TensorFileError: a.pt: holds a dict, not one tensor; save each tensor in ...

    Args:
        pickle: the record `data.pkl`, or its first `MAX_PICKLE_BYTES`.
        where: what messages call the file.
        cut: whether the record is longer than what is given here.

    Raises:
        UnsafeFileError: the pickle names something that is no part of a plain tensor.
        TensorFileError: it is damaged, or holds something else than one strided tensor.
    """
    known = _RECENT.get(pickle)
    if known is not None:
        return known
    machine = _Machine(pickle, where)
    try:
        value = machine.run()
    # Running off the end of the bytes or of the stack, or a string that is no text. These come
    # from the machine's own indexing only, because it calls nothing that the file chooses.
    except (IndexError, KeyError, UnicodeDecodeError, StructError) as err:
        if cut:
            raise machine.too_long() from err
        raise machine.broken("it ends too early or refers to nothing") from err
    if not isinstance(value, TensorPickle):
        raise _not_one_tensor(where, value)
    if len(pickle) <= _MAX_RECENT_BYTES:
        if len(_RECENT) >= _MAX_RECENT:
            _RECENT.clear()
        _RECENT[pickle] = value
    return value


# The files of a dump repeat their pickles: same dtype, same shape, same bytes. To look one up takes
# a fraction of the time to read it, which is a third of that to load a small file.
_RECENT: dict[bytes, TensorPickle] = {}
_MAX_RECENT = 4096
_MAX_RECENT_BYTES = 1024


def shown(text: str, *, limit: int | None = None) -> str:
    r"""Return a foreign text fit for a message: on one line, unable to steer a terminal.

    >>> shown("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


class _Global(NamedTuple):
    """A name that a pickle may ask for. It stays a name: the thing itself is never fetched."""

    kind: Literal["call", "class", "storage", "dtype"]
    name: str
    dtype: DType | None = None


class _Storage(NamedTuple):
    """A persistent id: the record with the bytes."""

    dtype: DType
    key: str
    device: str
    numel: int


def _typed_storages() -> dict[str, DType]:
    names = {
        "Double": "float64",
        "Float": "float32",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "Long": "int64",
        "Int": "int32",
        "Short": "int16",
        "Char": "int8",
        "Byte": "uint8",
        "Bool": "bool",
        "ComplexDouble": "complex128",
        "ComplexFloat": "complex64",
        # A storage without a type counts bytes.
        "Untyped": "uint8",
    }
    return {f"{name}Storage": DTYPES[f"torch.{dtype}"] for name, dtype in names.items()}


def _known_globals() -> dict[str, _Global]:
    known = [_Global("dtype", dtype.name, dtype) for dtype in DTYPES.values()]
    for module in ("torch", "torch.storage", "torch.cuda", "torch.npu"):
        known += [
            _Global("storage", f"{module}.{name}", dtype)
            for name, dtype in _typed_storages().items()
        ]
    known += [_Global("call", name) for name in _CALLS]
    known += [_Global("class", name) for name in _TENSOR_CLASSES]
    return {found.name: found for found in known}


class _Machine:
    """The pickle machine: a stack, the stacks below each mark, and the memo."""

    __slots__ = ("at", "data", "memo", "outer", "stack", "where")

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        # A dict, so that a far index costs as much as a near one.
        self.memo: dict[int, Any] = {}
        self.where = where

    def run(self) -> object:
        data = self.data
        for _ in range(_MAX_OPCODES):
            opcode = data[self.at]
            self.at += 1
            # A third of all opcodes; a call for each would be a fifth of the time to load a file.
            if opcode == _BINPUT:
                self.memo[data[self.at]] = self.stack[-1]
                self.at += 1
                continue
            if opcode == _STOP:
                return self.stack.pop()
            handler = _OPCODES.get(opcode)
            if handler is None:
                raise self.broken(f"opcode {opcode:#04x}")
            handler(self)
        raise self.too_long()

    # What can go wrong.

    def broken(self, what: str) -> TensorFileError:
        return TensorFileError(
            f"{self.where}: its pickle is not one that torch.save writes for a tensor ({what}, "
            f"byte {self.at}); the file may be damaged: write it again with torch.save"
        )

    def unsafe(self, what: str) -> UnsafeFileError:
        return UnsafeFileError(
            f"{self.where}: its pickle asks for {what}, which no plain tensor needs; it was not "
            "run: do not load this file with pickle or torch.load unless you trust its writer"
        )

    def too_long(self) -> TensorFileError:
        bottom = self.outer[0] if self.outer else self.stack
        if not bottom and self.outer:
            return _not_one_tensor(self.where, ())
        if bottom and type(bottom[0]) in (dict, list, tuple):
            return _not_one_tensor(self.where, bottom[0])
        return self.broken("it is too long")

    # Reading.

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise IndexError
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def take_line(self) -> str:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError
        line = self.data[self.at : end].decode()
        self.at = end + 1
        return line

    def take_number(self, layout: Struct) -> int:
        number: int = layout.unpack_from(self.data, self.at)[0]
        self.at += layout.size
        return number

    def pop_to_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.outer.pop()
        return items

    # What opcodes do, those that take more than a line.

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def push_marked_tuple(self) -> None:
        items = tuple(self.pop_to_mark())
        self.stack.append(items)

    def push_long(self, length: int) -> None:
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def push_global(self, module: str, name: str) -> None:
        self.stack.append(self.find_global(f"{module}.{name}"))

    def push_stack_global(self) -> None:
        name = self.stack.pop()
        module = self.stack.pop()
        if type(module) is not str or type(name) is not str:
            raise self.broken("a global without a name")
        self.push_global(module, name)

    def find_global(self, name: str) -> _Global:
        found = _GLOBALS.get(name)
        if found is not None:
            return found
        if name in _NOT_DENSE:
            raise TensorFileError(
                f"{self.where}: holds {_NOT_DENSE[name]}, not a dense tensor with data of its own; "
                "save it as a dense tensor on the CPU (to_dense(), dequantize() or cpu())"
            )
        if name in _OTHER_DTYPES:
            raise TensorFileError(
                f"{self.where}: holds elements of {name}, which tensorprobe does not read; save "
                "it converted, or its bits with tensor.view(torch.uint8)"
            )
        if self.wants_class():
            raise TensorFileError(
                f"{self.where}: holds a tensor subclass, {shown(name, limit=_MAX_SHOWN)}, which "
                "was not loaded; save it as a dense tensor: tensor.as_subclass(torch.Tensor)"
            )
        raise self.unsafe(shown(name, limit=_MAX_SHOWN))

    def wants_class(self) -> bool:
        """Whether the next name is the class of a tensor with attributes or of a subclass."""
        before = self.outer[-1][-1:] if self.outer else []
        return (
            len(self.stack) == 1
            and _is_rebuild(self.stack[0])
            and isinstance(before[0] if before else None, _Global)
            and before[0].name == _FROM_TYPE
        )

    def reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        self.stack.append(self.call(function, arguments))

    def call(self, function: object, arguments: object) -> object:
        if not isinstance(function, _Global) or type(arguments) is not tuple:
            raise self.broken("a call of no function")
        rebuild = _CALLS.get(function.name)
        if rebuild is None:
            raise self.broken(f"a call of {function.name}")
        return rebuild(self, arguments)

    def build(self) -> None:
        self.stack.pop()
        # A state dict carries its metadata as an attribute; nothing else here has any.
        if type(self.stack[-1]) is not dict:
            raise self.unsafe("setting the state of an object (BUILD)")

    def refuse_instance(self) -> None:
        module, name = self.take_line(), self.take_line()
        raise self.unsafe(shown(f"{module}.{name}", limit=_MAX_SHOWN))

    def refuse_object(self) -> None:
        raise self.unsafe("making an object (NEWOBJ, OBJ or EXT)")

    def append_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise self.broken("an item for no list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise self.broken("an item for no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing a tuple that holds itself twice, sixty times over, takes for ever.
            if type(key) not in _KEY_TYPES:
                raise self.broken("an odd key")
            target[key] = value

    def set_item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.set_items([key, value])

    def append_item(self) -> None:
        item = self.stack.pop()
        self.append_items([item])

    def push_storage(self) -> None:
        pid = self.stack.pop()
        if type(pid) is not tuple or len(pid) < 5 or type(pid[0]) is not str or pid[0] != "storage":
            raise self.unsafe("an object from outside that is no storage")
        _, kind, key, device, numel = pid[:5]
        if not (
            isinstance(kind, _Global)
            and kind.kind == "storage"
            and kind.dtype is not None
            and type(key) is str
            and type(device) is str
        ):
            raise self.broken("a strange storage")
        self.stack.append(_Storage(kind.dtype, key, device, self.natural(numel)))

    # Checking arguments.

    def natural(self, value: object) -> int:
        if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
            raise self.broken("a size that is no size")
        return value

    def naturals(self, value: object) -> tuple[int, ...]:
        if type(value) is not tuple:
            raise self.broken("a shape that is no shape")
        return tuple([self.natural(item) for item in value])


def _not_one_tensor(where: str, value: object) -> TensorFileError:
    what = value.name if isinstance(value, _Global) else _KINDS.get(type(value), "no tensor")
    return TensorFileError(
        f"{where}: holds {what}, not one tensor; save each tensor in a file of its own"
    )


def _describe_tensor(
    machine: _Machine, arguments: tuple[Any, ...], dtype: object, metadata: object
) -> TensorPickle:
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, _Storage):
        raise machine.broken("a tensor without a storage")
    if dtype is None:
        element: DType = storage.dtype
    elif isinstance(dtype, _Global) and dtype.kind == "dtype" and dtype.dtype is not None:
        element = dtype.dtype
    else:
        raise machine.broken("a tensor without a dtype")
    if metadata is None:
        metadata = {}
    if type(metadata) is not dict:
        raise machine.broken("metadata that are no dict")
    sizes, steps = machine.naturals(shape), machine.naturals(stride)
    if len(sizes) != len(steps):
        raise machine.broken("a shape and strides that differ in length")
    return TensorPickle(
        storage_key=storage.key,
        storage_dtype=storage.dtype,
        storage_numel=storage.numel,
        device=storage.device,
        dtype=element,
        offset=machine.natural(offset),
        shape=sizes,
        stride=steps,
        # Other metadata belong to a device's own layout; torch too drops them on the CPU.
        conj=metadata.get("conj") is True,
        neg=metadata.get("neg") is True,
    )


def _is_rebuild(value: object) -> bool:
    # Never `value in {...}`: to hash what the file built can take for ever.
    return isinstance(value, _Global) and value.name.startswith("torch._utils._rebuild_tensor")


def _rebuild_tensor(machine: _Machine, arguments: tuple[Any, ...]) -> TensorPickle:
    if len(arguments) != 4:
        raise machine.broken("wrong arguments")
    return _describe_tensor(machine, arguments, None, None)


def _rebuild_tensor_v2(machine: _Machine, arguments: tuple[Any, ...]) -> TensorPickle:
    if len(arguments) not in (6, 7):
        raise machine.broken("wrong arguments")
    return _describe_tensor(machine, arguments, None, arguments[6] if arguments[6:] else None)


def _rebuild_tensor_v3(machine: _Machine, arguments: tuple[Any, ...]) -> TensorPickle:
    if len(arguments) not in (7, 8) or arguments[6] is None:
        raise machine.broken("wrong arguments")
    metadata = arguments[7] if arguments[7:] else None
    return _describe_tensor(machine, arguments, arguments[6], metadata)


def _rebuild_parameter(machine: _Machine, arguments: tuple[Any, ...]) -> TensorPickle:
    # (tensor, requires_grad, hooks[, state]): a state that came this far is data, and not needed.
    if len(arguments) not in (3, 4) or not isinstance(arguments[0], TensorPickle):
        raise machine.broken("a parameter without a tensor")
    return arguments[0]


def _rebuild_from_type(machine: _Machine, arguments: tuple[Any, ...]) -> object:
    # (rebuild function, class, its arguments, attributes): a plain tensor that has attributes.
    if len(arguments) != 4 or not _is_rebuild(arguments[0]):
        raise machine.broken("wrong arguments")
    kind = arguments[1]
    if not isinstance(kind, _Global) or kind.kind != "class":
        raise machine.broken("a tensor without a class")
    return machine.call(arguments[0], arguments[2])


def _make_dict(machine: _Machine, arguments: tuple[Any, ...]) -> dict[object, object]:
    # Hooks, or a state dict from Python 2 with its items as the argument; neither is looked at.
    return {}


def _make_set(machine: _Machine, arguments: tuple[Any, ...]) -> list[object]:
    # An attribute that torch.compile leaves on tensors; nobody looks at it.
    return []


def _make_size(machine: _Machine, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) != 1:
        raise machine.broken("wrong arguments")
    return machine.naturals(arguments[0])


_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
_CALLS: dict[str, Callable[[_Machine, tuple[Any, ...]], object]] = {
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    _FROM_TYPE: _rebuild_from_type,
    "collections.OrderedDict": _make_dict,
    "__builtin__.set": _make_set,
    "builtins.set": _make_set,
    "torch.Size": _make_size,
}
_GLOBALS = _known_globals()

# Tensors, but none that a shape, strides and one piece of memory describe.
_NOT_DENSE = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch.nested._internal.nested_tensor._rebuild_njt": "a nested tensor",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor",
    "torch._utils._rebuild_device_tensor_from_numpy": "a device's tensor",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a device's tensor",
    "torch._utils._rebuild_xla_tensor": "a device's tensor",
    "torch_npu.utils.storage._rebuild_npu_tensor": "an NPU's tensor",
}
_OTHER_DTYPES = frozenset(
    [f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]
    + ["torch.bits8", "torch.bits16", "torch.bits1x8", "torch.bits2x4", "torch.bits4x2"]
    + ["torch.qint8", "torch.qint32", "torch.quint8", "torch.quint4x2", "torch.quint2x4"]
    + ["torch.QInt8Storage", "torch.QInt32Storage", "torch.QUInt8Storage"]
    + ["torch.QUInt4x2Storage", "torch.QUInt2x4Storage", "torch.float4_e2m1fn_x2"]
)
_KEY_TYPES = frozenset([str, int, bool, float, bytes, type(None)])
_KINDS: dict[type, str] = {
    dict: "a dict",
    list: "a list",
    tuple: "a tuple",
    str: "a text",
    bytes: "bytes",
    int: "an integer",
    float: "a float",
    bool: "a bool",
    type(None): "None",
    _Storage: "a storage",
}

_STOP = ord(".")
_BINPUT = ord("q")
_BYTE, _UINT16, _INT32, _UINT32, _UINT64 = map(Struct, ("<B", "<H", "<i", "<I", "<Q"))
_DOUBLE = Struct(">d")


def _memoize(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _push_text(machine: _Machine, length: Struct) -> None:
    count = machine.take_number(length)
    machine.stack.append(machine.take(count).decode("utf-8", "surrogatepass"))


def _push_bytes(machine: _Machine, length: Struct) -> None:
    machine.stack.append(machine.take(machine.take_number(length)))


_OPCODES: dict[int, Callable[[_Machine], object]] = {
    ord(opcode): handler
    for opcode, handler in {
        # Framing.
        "\x80": lambda m: m.take(1),  # PROTO
        "\x95": lambda m: m.take(8),  # FRAME
        # Memo.
        "r": lambda m: _memoize(m, m.take_number(_UINT32)),  # LONG_BINPUT
        "\x94": lambda m: _memoize(m, len(m.memo)),  # MEMOIZE
        "h": lambda m: m.stack.append(m.memo[m.take_number(_BYTE)]),  # BINGET
        "j": lambda m: m.stack.append(m.memo[m.take_number(_UINT32)]),  # LONG_BINGET
        # Plain values.
        "N": lambda m: m.stack.append(None),  # NONE
        "\x88": lambda m: m.stack.append(True),  # NEWTRUE
        "\x89": lambda m: m.stack.append(False),  # NEWFALSE
        "K": lambda m: m.stack.append(m.take_number(_BYTE)),  # BININT1
        "M": lambda m: m.stack.append(m.take_number(_UINT16)),  # BININT2
        "J": lambda m: m.stack.append(m.take_number(_INT32)),  # BININT
        "\x8a": lambda m: m.push_long(m.take_number(_BYTE)),  # LONG1
        "G": lambda m: m.stack.append(_DOUBLE.unpack(m.take(8))[0]),  # BINFLOAT
        "X": lambda m: _push_text(m, _UINT32),  # BINUNICODE
        "\x8c": lambda m: _push_text(m, _BYTE),  # SHORT_BINUNICODE
        "\x8d": lambda m: _push_text(m, _UINT64),  # BINUNICODE8
        "U": lambda m: _push_bytes(m, _BYTE),  # SHORT_BINSTRING
        "C": lambda m: _push_bytes(m, _BYTE),  # SHORT_BINBYTES
        "B": lambda m: _push_bytes(m, _UINT32),  # BINBYTES
        # Containers.
        "(": _Machine.mark,  # MARK
        ")": lambda m: m.stack.append(()),  # EMPTY_TUPLE
        "\x85": lambda m: m.push_tuple(1),  # TUPLE1
        "\x86": lambda m: m.push_tuple(2),  # TUPLE2
        "\x87": lambda m: m.push_tuple(3),  # TUPLE3
        "t": _Machine.push_marked_tuple,  # TUPLE
        "]": lambda m: m.stack.append([]),  # EMPTY_LIST
        "\x8f": lambda m: m.stack.append([]),  # EMPTY_SET: an attribute that nobody looks at
        "a": _Machine.append_item,  # APPEND
        "e": lambda m: m.append_items(m.pop_to_mark()),  # APPENDS
        "\x90": lambda m: m.append_items(m.pop_to_mark()),  # ADDITEMS
        "}": lambda m: m.stack.append({}),  # EMPTY_DICT
        "s": _Machine.set_item,  # SETITEM
        "u": lambda m: m.set_items(m.pop_to_mark()),  # SETITEMS
        # Names and calls.
        "c": lambda m: m.push_global(m.take_line(), m.take_line()),  # GLOBAL
        "\x93": _Machine.push_stack_global,  # STACK_GLOBAL
        "Q": _Machine.push_storage,  # BINPERSID
        "R": _Machine.reduce,  # REDUCE
        "b": _Machine.build,  # BUILD
        # What no tensor needs.
        "i": _Machine.refuse_instance,  # INST
        "o": _Machine.refuse_object,  # OBJ
        "\x81": _Machine.refuse_object,  # NEWOBJ
        "\x92": _Machine.refuse_object,  # NEWOBJ_EX
        "\x82": _Machine.refuse_object,  # EXT1
        "\x83": _Machine.refuse_object,  # EXT2
        "\x84": _Machine.refuse_object,  # EXT4
    }.items()
}
