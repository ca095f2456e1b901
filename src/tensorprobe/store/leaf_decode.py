"""Read the JSON object that describes one value (a *leaf*) into a record.

A leaf that makes no sense becomes an `UnknownValue` and a sentence in `problems`: the rest of its
call is still good. This is where a file's value enters the house: what comes out has numbers that
fit a float or their type, and shapes that a tensor can have: nobody further in need ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
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
    PeerOpValue,
    ReduceOpValue,
    SizeValue,
    SliceValue,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store.layout import FORM_KEY, UNKNOWN_KEY
from tensorprobe.store.scalar_decode import (
    MOST_FLOAT,
    fits_float,
    is_whole,
    read_scalar,
    shown,
)

__all__ = [
    "MOST_VALUES",
    "KnownShapes",
    "LeafDecoder",
    "is_shape",
    "is_size",
    "usual_fields",
]

MOST_VALUES = 250_000
"""How many values one call may have; each takes many times its text."""

# A dump names a few thousand shapes a million times; each is checked and kept once.
_KNOWN_SHAPES_LIMIT = 100_000


KnownShapes = dict[tuple[Any, ...], tuple[int, ...]]
_DEEPEST = 200
# The way down to a value is part of its name, and of the names of all below it.
_LONGEST_WAY = 2000
_INDEX_LENGTH = 7
# numpy has 64 dimensions and torch's operators no more; a view of torch may have some others.
_MOST_DIMENSIONS = 128
# More elements than a whole number of 64 bits can count are no tensor.
_MOST_ELEMENTS = 2**63 - 1
_NUMBERS = frozenset((float, bool, type(None)))


# By far the most leaves have these and their type, and nothing else.
_statistics_of = itemgetter("dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")
_STATISTICS_ONLY = 8


def usual_fields(raw: dict[str, Any], shapes: KnownShapes) -> tuple[Any, ...] | None:
    """Return the first nine fields of a tensor's leaf; None if it needs a closer look.

    Args:
        raw: the parsed leaf.
        shapes: those that were found to be shapes.
    """
    # Called a million times for a large dump: what is as it should be costs no further call.
    if len(raw) == _STATISTICS_ONLY:
        try:
            dtype, sizes, high, low, mean, norm, requires_grad = _statistics_of(raw)
            if (
                type(high) is type(low) is type(mean) is type(norm) is float
                and type(dtype) is str
                and type(requires_grad) is bool
            ):
                return (
                    dtype,
                    shapes[tuple(sizes)],
                    high,
                    low,
                    mean,
                    norm,
                    requires_grad,
                    None,
                    None,
                )
        except (KeyError, TypeError):
            pass
    get: Any = raw.get
    dtype, sizes = get("dtype"), get("shape")
    high, low, mean, norm = get("Max"), get("Min"), get("Mean"), get("Norm")
    requires_grad, checksum, data_name = get("requires_grad"), get("md5"), get("data_name")
    try:
        shape = shapes[tuple(sizes)]
        if (
            type(dtype) is str
            and (type(high) in _NUMBERS or _is_usual_int(high))
            and (type(low) in _NUMBERS or _is_usual_int(low))
            and (type(mean) in _NUMBERS or _is_usual_int(mean))
            and (type(norm) in _NUMBERS or _is_usual_int(norm))
            and (requires_grad is None or type(requires_grad) is bool)
            and (checksum is None or type(checksum) is str)
            and (data_name is None or type(data_name) is str)
            and "Max_finite" not in raw
            and "Min_finite" not in raw
            and FORM_KEY not in raw
            and UNKNOWN_KEY not in raw
        ):
            return (dtype, shape, high, low, mean, norm, requires_grad, checksum, data_name or None)
    except (KeyError, TypeError):
        pass
    return None


def _is_usual_int(value: Any) -> bool:
    return type(value) is int and -MOST_FLOAT <= value <= MOST_FLOAT


class LeafDecoder:
    """Turns parsed JSON into values and collects what is wrong with it.

    >>> problems = []
    >>> decoder = LeafDecoder(problems)
    >>> decoder.decode({"type": "int", "value": 3})
    ScalarValue(type_name='int', value=3)
    >>> decoder.decode({"type": "torch.Tensor", "dtype": "torch.float32", "shape": "x"})
    UnknownValue(type_name='torch.Tensor', text='malformed')
    >>> problems
    ["a tensor has the shape 'x', wanted a list of sizes"]
    """

    def __init__(self, problems: list[str], shapes: KnownShapes | None = None) -> None:
        self.problems = problems
        self._shapes: KnownShapes = {} if shapes is None else shapes
        self._count = 0

    def has_room(self, count: int) -> bool:
        """Whether a call may have so many values more; if not, that is a problem."""
        self._count += count
        if self._count <= MOST_VALUES:
            return True
        self.problems.append(f"it has more than {MOST_VALUES:,} values; {count:,} are left out")
        return False

    def decode(self, raw: Any, depth: int = 0, way: int = 0) -> Value:
        """Return the value that a parsed leaf, list or object describes.

        Args:
            raw: what was parsed.
            depth: how many containers it stands in.
            way: how long the names of the way down to it are.
        """
        if raw is None:
            return None
        if depth > _DEEPEST or way > _LONGEST_WAY:
            self.problems.append(f"a value is nested more than {_DEEPEST} levels deep")
            if depth <= _DEEPEST:
                self.problems[-1] = f"the way to a value is longer than {_LONGEST_WAY} characters"
            return UnknownValue(type(raw).__name__, "nested too deeply")
        if isinstance(raw, dict):
            type_name = raw.get("type")
            if type_name == "torch.Tensor" and UNKNOWN_KEY not in raw:
                return self._tensor(raw)
            if isinstance(type_name, str):
                return self._typed(type_name, raw)
            if isinstance(raw.get("class_type"), str):
                return self._peer_op(raw, depth, way)
            if not self.has_room(len(raw)):
                return UnknownValue("dict", f"{len(raw)} values")
            return DictValue(
                tuple(
                    [
                        (key, self.decode(item, depth + 1, way + len(key) + 1))
                        for key, item in raw.items()
                    ]
                )
            )
        if isinstance(raw, list):
            if not self.has_room(len(raw)):
                return UnknownValue("list", f"{len(raw)} values")
            way += _INDEX_LENGTH
            return ListValue(tuple([self.decode(item, depth + 1, way) for item in raw]))
        return read_scalar(type(raw).__name__, raw)

    def _tensor(self, raw: dict[str, Any]) -> Value:
        fields = usual_fields(raw, self._shapes)
        return self._unusual_tensor(raw) if fields is None else TensorValue(*fields)

    def _unusual_tensor(self, raw: dict[str, Any]) -> Value:
        dtype = raw.get("dtype")
        shape = self._shape(raw.get("shape"))
        if shape is None or not isinstance(dtype, str):
            if shape is not None:
                self.problems.append(f"a tensor has the dtype {shown(dtype)}, wanted a text")
            return UnknownValue("torch.Tensor", "malformed")
        return TensorValue(
            dtype,
            shape,
            self._number(raw, "Max"),
            self._number(raw, "Min"),
            self._number(raw, "Mean"),
            self._number(raw, "Norm"),
            self._of_type(raw, "requires_grad", bool, "true or false"),
            self._of_type(raw, "md5", str, "a text"),
            self._of_type(raw, "data_name", str, "a text") or None,
            self._number(raw, "Max_finite"),
            self._number(raw, "Min_finite"),
            self._of_type(raw, FORM_KEY, str, "a text"),
        )

    def _shape(self, raw: Any) -> tuple[int, ...] | None:
        if not is_shape(raw):
            is_list = isinstance(raw, list) and all(is_size(size) for size in raw)
            wanted = "which no tensor can have" if is_list else "wanted a list of sizes"
            self.problems.append(f"a tensor has the shape {shown(raw)}, {wanted}")
            return None
        shape = tuple(raw)
        if len(self._shapes) < _KNOWN_SHAPES_LIMIT:
            self._shapes[shape] = shape
        return shape

    def _number(self, raw: dict[str, Any], key: str) -> Number | None:
        value = raw.get(key)
        if value is None or fits_float(value):
            number: Number | None = value
            return number
        self.problems.append(f"a tensor has the {key} {shown(value)}, wanted a number or null")
        return None

    def _of_type(self, raw: dict[str, Any], key: str, kind: type, wanted: str) -> Any:
        value = raw.get(key)
        if value is None or isinstance(value, kind):
            return value
        self.problems.append(f"a tensor has the {key} {shown(value)}, wanted {wanted}")
        return None

    def _typed(self, type_name: str, raw: dict[str, Any]) -> Value:
        value = raw.get("value")
        if raw.get(UNKNOWN_KEY) is True:
            return UnknownValue(type_name, value if isinstance(value, str) else "")
        if type_name == "slice":
            if (
                isinstance(value, list)
                and len(value) == 3
                and all(part is None or is_whole(part) for part in value)
            ):
                return SliceValue(*value)
        elif type_name == "ellipsis":
            return EllipsisValue()
        elif type_name == "NoneType":
            return None
        elif type_name == "torch.Size":
            # `x.size()[:-1] + (heads, -1)` is one, too.
            if (
                isinstance(value, list)
                and len(value) <= _MOST_DIMENSIONS
                and all((type(size) is int and size == -1) or is_size(size) for size in value)
            ):
                return SizeValue(tuple(value))
        elif type_name == "torch.ProcessGroup":
            ranks = raw.get("group_ranks")
            if isinstance(ranks, list) and all(is_size(rank) for rank in ranks):
                return GroupValue(tuple(ranks), _group_id(raw))
        elif type_name == "torch.memory_format":
            if isinstance(raw.get("format"), str):
                return MemoryFormatValue(raw["format"])
        elif type_name.startswith("complex"):
            number = _complex(value)
            if number is not None:
                return read_scalar(type_name, number)
        elif isinstance(value, str) and type_name in _TEXT_VALUES:
            return _TEXT_VALUES[type_name](value)
        elif isinstance(value, (bool, int, float, str)):
            return read_scalar(type_name, value)
        return UnknownValue(type_name, "" if value is None else shown(value))

    def _peer_op(self, raw: dict[str, Any], depth: int, way: int) -> Value:
        op, peer, tag = raw.get("op"), raw.get("peer"), raw.get("tag", 0)
        if isinstance(op, str) and is_whole(peer) and is_whole(tag):
            tensor = self.decode(raw.get("tensor"), depth + 1, way)
            return PeerOpValue(op, peer, tag, _group_id(raw), tensor)
        return UnknownValue(raw["class_type"])


_TEXT_VALUES: dict[str, Callable[[str], Value]] = {
    "torch.dtype": DtypeValue,
    "torch.device": DeviceValue,
    "torch.distributed.ReduceOp": ReduceOpValue,
}


def is_size(value: Any) -> bool:
    """Whether a parsed number can be one size of a shape.

    >>> is_size(3), is_size(-1), is_size(True), is_size(3.0)
    (True, False, False, False)
    """
    return type(value) is int and 0 <= value < 2**63


def is_shape(raw: Any) -> bool:
    """Whether parsed JSON is the shape of a tensor that can be.

    >>> is_shape([2, 3]), is_shape([2**40, 2**40]), is_shape([1] * 1000), is_shape("2, 3")
    (True, False, False, False)
    """
    return (
        isinstance(raw, list)
        and len(raw) <= _MOST_DIMENSIONS
        and all(is_size(size) for size in raw)
        and math.prod(raw) <= _MOST_ELEMENTS
    )


def _group_id(raw: dict[str, Any]) -> str:
    group_id = raw.get("group_id")
    return group_id if isinstance(group_id, str) else "" if group_id is None else shown(group_id)


def _complex(value: Any) -> complex | None:
    if not isinstance(value, str):
        return None
    try:
        return complex(value)
    except ValueError:
        return None
