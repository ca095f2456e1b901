"""Read what ptdbg_ascend wrote: a `.pkl` that is text, one JSON array per line, and npy files.

    [name, step, md5, dtype, shape, [max, min, mean, norm]]     one value of a call
    ["{call}…stack_info", [[path, line, function, source], …]]  where it was made

Values that the tool could not describe (None, texts, slices) have no line; the index that they
leave out is kept as an unknown value. What was given by name stands behind the other inputs,
without its name; older states of the tool left it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, NameFormatError
from tensorprobe.names import parse_ptdbg_line
from tensorprobe.records import (
    CallRecord,
    DumpInfo,
    Frame,
    ListValue,
    Number,
    TensorValue,
    UnknownValue,
    Value,
)
from tensorprobe.store.data_folder import DataFolder, inside
from tensorprobe.store.dump import RankDump
from tensorprobe.store.entry_file import map_file
from tensorprobe.store.file_names import file_name_of
from tensorprobe.store.json_text import parse_json
from tensorprobe.store.leaf_decode import is_shape
from tensorprobe.store.leaves import CallLeaves
from tensorprobe.store.scalar_decode import fits_float, read_scalar, shown

__all__ = ["open_ptdbg_file"]

# Without a device the tool took the process id and added this, to keep it apart from ranks.
_PROCESS_OFFSET = 100_000

_NOT_RECORDED = UnknownValue("not recorded")
# More digits than these are damage: no call takes so many arguments.
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")

# One after the other: a file may have as many lines as bytes.
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_MOST_PROBLEMS = 1000

_Tree = dict[str, Any]


def open_ptdbg_file(path: Path, info: DumpInfo) -> RankDump:
    """Open an api_stack_dump.pkl or dump.pkl.

    Raises:
        DumpError: it cannot be read or none of its lines is a line of ptdbg_ascend.
    """
    text = bytes(map_file(path))
    has_data = any(inside(path.parent, path.stem).glob("*.npy"))
    source = _PtdbgSource()
    problems: list[str] = []
    for number, match in enumerate(_LINE.finditer(text), start=1):
        if len(match[0]) < 2:
            continue
        try:
            source.add_line(parse_json(match[0]), has_data=has_data)
        except (DumpError, NameFormatError) as err:
            if len(problems) < _MOST_PROBLEMS:
                problems.append(f"line {number} is left out: {err}")
    if source.stacks and not source.names:
        raise DumpError(
            f"{path} holds call stacks alone, as the mode 'stack' writes them; `parse` of a dump "
            "of another mode shows them with the values"
        )
    if not source.names:
        raise DumpError(
            f"{path} is no text dump of ptdbg_ascend: none of its lines is a JSON array with a "
            "call's name; a real pickle is never opened"
        )
    if info.rank is not None and info.rank >= _PROCESS_OFFSET:
        info = replace(info, rank=None, process=info.rank - _PROCESS_OFFSET)
    return RankDump(
        path,
        replace(info, task="tensor" if has_data else "statistics", tool="ptdbg_ascend"),
        source,
        DataFolder(path.parent, path.stem),
        read_stacks=lambda: source.stacks,
        problems=problems,
    )


class _PtdbgSource:
    """The calls of one text file, put together from its lines."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, _Tree]] = {}
        self.stacks: dict[str, tuple[Frame, ...]] = {}

    @cached_property
    def names(self) -> Sequence[str]:
        return tuple(self._calls)

    def read(self, name: str) -> tuple[CallRecord, list[str]]:
        sections = self._calls[name]
        inputs, outputs = _values(sections, "input"), _values(sections, "output")
        return CallRecord(name, inputs=inputs, outputs=outputs), []

    def leaves(self) -> Iterator[CallLeaves | str]:
        return iter(self.names)

    def add_line(self, line: Any, *, has_data: bool) -> None:
        match line:
            case [str(text), list(frames)]:
                call, section, _ = parse_ptdbg_line(text)
                if section == "stack_info":
                    self.stacks[str(call)] = tuple(_frame(frame) for frame in frames)
                    return
            case [str(text), _, md5, str(dtype), shape, list(statistics)]:
                call, section, path = parse_ptdbg_line(text)
                data_name = file_name_of(text, ".npy") if has_data else None
                value = _value(md5, dtype, shape, statistics, data_name)
                # Before anything is made for it: a tree without values cannot be built.
                if not all(_INDEX.fullmatch(key) for key in path):
                    raise DumpError(f"the value {'.'.join(path)} has no index of an argument")
                tree = self._calls.setdefault(str(call), {}).setdefault(section, {})
                _put(tree, path or ("0",), value)
                return
        raise DumpError("not a line of ptdbg_ascend")


def _frame(raw: Any) -> Frame:
    match raw:
        case [str(path), line, str(function), *source]:
            number = int(line) if str(line).isdecimal() and len(str(line)) < 10 else 0
            return Frame(path, number, function, str(source[0]) if source else "")
        case _:
            raise DumpError("not a frame of ptdbg_ascend")


def _value(md5: Any, dtype: str, shape: Any, statistics: list[Any], data_name: str | None) -> Value:
    if dtype.startswith("<class '"):
        type_name = dtype.removeprefix("<class '").removesuffix("'>")
        match statistics:
            case [(bool() | int() | float() | str()) as value, *_]:
                return read_scalar(type_name, value)
            case _:
                return UnknownValue(type_name)
    if not is_shape(shape):
        raise DumpError(f"a tensor has the shape {shown(shape)}, wanted a list of sizes")
    largest, smallest, mean, norm = (_number(entry) for entry in [*statistics, *[None] * 4][:4])
    return TensorValue(
        dtype,
        tuple(shape),
        largest,
        smallest,
        mean,
        norm,
        checksum=md5 if isinstance(md5, str) else None,
        data_name=data_name,
    )


def _number(entry: Any) -> Number | None:
    # "Nan" and [] say that the tool did not compute it.
    return entry if fits_float(entry) else None


def _put(tree: _Tree, path: tuple[str, ...], value: Value) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise DumpError(f"the value {'.'.join(path)} stands below another value")
    if path[-1] in tree:
        raise DumpError(f"the value {'.'.join(path)} comes a second time")
    tree[path[-1]] = value


def _values(sections: dict[str, _Tree], section: str) -> tuple[Value, ...] | None:
    return _items(sections[section]) if section in sections else None


def _items(tree: _Tree) -> tuple[Value, ...]:
    last = max(int(key) for key in tree)
    return tuple(_built(tree.get(str(index), _NOT_RECORDED)) for index in range(last + 1))


def _built(node: Any) -> Value:
    return ListValue(_items(node)) if isinstance(node, dict) else node
