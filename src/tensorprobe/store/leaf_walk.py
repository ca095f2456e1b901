"""Walk the JSON of a call straight to its leaves, for reading a whole dump.

text of a call ─► _leaf_walk.c, where it is compiled and nothing in the call is nested
parsed call ─► LeafWalker, what is exactly as it should be, with the functions of the records
            └► the reader of records, which can tell what is wrong with the rest
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Protocol

from tensorprobe.names import is_parameter_gradients
from tensorprobe.records import DictValue, ListValue, PeerOpValue
from tensorprobe.store.leaf_decode import MOST_VALUES, KnownShapes, LeafDecoder, usual_fields
from tensorprobe.store.leaves import CallLeaves, Leaf, flat_leaf
from tensorprobe.store.scalar_decode import is_whole
from tensorprobe.system.extensions import load_compiled
from tensorprobe.system.powers_of_ten import powers_of_ten

__all__ = ["LeafWalker"]

_DEEPEST = 50
_LONGEST_PLACE = 1000
# The depth of a saved value, which has no place of its own.
_NAMELESS = -1
_NUMBERED = tuple(str(number) for number in range(64))
_INPUTS = tuple(f"input.{number}" for number in _NUMBERED)
_OUTPUTS = tuple(f"output.{number}" for number in _NUMBERED)
_PLAIN_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
# The constructor that a NamedTuple writes in Python takes twice as long.
_make_leaf = partial(tuple.__new__, Leaf)
_make_call = partial(tuple.__new__, CallLeaves)


class _Compiled(Protocol):
    """What `_leaf_walk.c` offers."""

    def call_leaves(self, name: str, text: bytes, shapes: KnownShapes, /) -> CallLeaves | None:
        """Return the values of a call, or None if Python must read it."""
        ...

    def set_up(
        self,
        leaf: type[Leaf],
        call: type[CallLeaves],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        powers: bytes,
        /,
    ) -> None:
        """Take the classes, the places of the first arguments and results, powers of ten."""
        ...


@cache
def _set_up(compiled: _Compiled) -> _Compiled:
    compiled.set_up(Leaf, CallLeaves, _INPUTS, _OUTPUTS, powers_of_ten())
    return compiled


class _UnusualError(Exception):
    """This call is for the reader of records."""


class LeafWalker:
    """Reads entries of one dump.

    >>> walker = LeafWalker()
    >>> raw = {"input_args": [{"type": "int", "value": 3}], "output": [None]}
    >>> [(leaf.place, leaf.max) for leaf in walker.call("Torch.a.0.forward", raw).leaves]
    [('input.0', 3), ('output.0', None)]
    >>> walker.call("Torch.a.0.forward", {"input_args": 3}) is None
    True
    """

    def __init__(self, shapes: KnownShapes | None = None, *, is_saved: bool = False) -> None:
        self._shapes: KnownShapes = {} if shapes is None else shapes
        self._is_saved = is_saved
        self._count = 0
        compiled = load_compiled("tensorprobe.store._leaf_walk", "call_leaves", "set_up")
        self._compiled = None if compiled is None else _set_up(compiled)

    def text_call(self, name: str, text: bytes) -> CallLeaves | None:
        """Return the values of an entry, or None if it must be parsed first."""
        if self._compiled is None or self._is_saved or is_parameter_gradients(name):
            return None
        return self._compiled.call_leaves(name, text, self._shapes)

    def call(self, name: str, raw: Any) -> CallLeaves | None:
        """Return the values of a parsed entry, or None if anything about it is unusual."""
        leaves: list[Leaf] = []
        self._count = 0
        try:
            if self._is_saved:
                self._walk("", raw, leaves, _NAMELESS)
                return CallLeaves(name, leaves, None)
            if type(raw) is not dict:
                return None
            if is_parameter_gradients(name):
                self._take(raw)
                for key, value in raw.items():
                    is_single = type(value) is list and len(value) == 1
                    self._walk(key, value[0] if is_single else value, leaves, 0)
                return CallLeaves(name, leaves, None)
            inputs = raw.get("input_args" if "input_args" in raw else "input")
            if inputs:
                self._walk_list(_INPUTS, "input.", inputs, leaves)
            kwargs = raw.get("input_kwargs")
            if kwargs:
                self._walk_dict("kwargs.", kwargs, leaves)
            parameters = raw.get("parameters")
            if parameters:
                self._walk_dict("parameters.", parameters, leaves)
            outputs = raw.get("output")
            if outputs:
                self._walk_list(_OUTPUTS, "output.", outputs, leaves)
            for section in (inputs, outputs):
                if not section and section is not None and type(section) is not list:
                    return None
            for section in (kwargs, parameters):
                if not section and section is not None and type(section) is not dict:
                    return None
        except _UnusualError:
            return None
        is_recompute = raw.get("is_recompute")
        made: CallLeaves = _make_call(
            (name, leaves, is_recompute if type(is_recompute) is bool else None)
        )
        return made

    def _take(self, values: Any) -> None:
        """Count values; a call that has too many is for the reader of records."""
        self._count += len(values)
        if self._count > MOST_VALUES:
            raise _UnusualError

    def _walk_list(
        self, places: tuple[str, ...], prefix: str, values: Any, leaves: list[Leaf]
    ) -> None:
        if type(values) is not list:
            raise _UnusualError
        self._take(values)
        if len(values) > len(places):
            places = tuple(f"{prefix}{number}" for number in range(len(values)))
        shapes, add = self._shapes, leaves.append
        for place, raw in zip(places, values, strict=False):
            if type(raw) is dict and raw.get("type") == "torch.Tensor":
                fields = usual_fields(raw, shapes)
                if fields is not None:
                    add(_make_leaf((place, "tensor", *fields, None)))
                    continue
            self._walk(place, raw, leaves, 0)

    def _walk_dict(self, prefix: str, values: Any, leaves: list[Leaf]) -> None:
        if type(values) is not dict:
            raise _UnusualError
        self._take(values)
        for key, value in values.items():
            self._walk(prefix + key, value, leaves, 0)

    def _walk(self, place: str, raw: Any, leaves: list[Leaf], depth: int) -> None:
        """Add the leaves of one value."""
        if len(place) > _LONGEST_PLACE:
            raise _UnusualError
        kind = type(raw)
        if kind is dict:
            type_name = raw.get("type")
            if type_name == "torch.Tensor":
                fields = usual_fields(raw, self._shapes)
                if fields is not None:
                    leaves.append(_make_leaf((place, "tensor", *fields, None)))
                    return
            elif type(type_name) is str and type_name in _PLAIN_TYPES and len(raw) == 2:
                value = raw.get("value")
                if type(value) is _PLAIN_TYPES[type_name] and (
                    type_name != "int" or is_whole(value)
                ):
                    leaves.append(
                        _make_leaf(
                            (place, type_name, type_name, (), *(value,) * 4, None, None, None, None)
                        )
                    )
                    return
            if type(type_name) is not str and type(raw.get("class_type")) is not str:
                self._take(raw)
                self._walk_inside(place, raw.items(), leaves, depth)
                return
        elif kind is list:
            self._take(raw)
            self._walk_inside(place, enumerate(raw), leaves, depth)
            return
        self._add_other(place, raw, leaves)

    def _walk_inside(self, place: str, items: Any, leaves: list[Leaf], depth: int) -> None:
        if depth == _DEEPEST:
            raise _UnusualError
        prefix = "" if depth == _NAMELESS else place + "."
        for key, value in items:
            self._walk(f"{prefix}{key}", value, leaves, depth + 1)

    def _add_other(self, place: str, raw: Any, leaves: list[Leaf]) -> None:
        problems: list[str] = []
        value = LeafDecoder(problems, self._shapes).decode(raw)
        if problems or isinstance(value, (PeerOpValue, ListValue, DictValue)):
            raise _UnusualError
        leaves.append(flat_leaf(place, value))
