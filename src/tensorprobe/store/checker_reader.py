"""Read what api_accuracy_checker wrote: forward_info, backward_info and stack_info of one process.

A forward entry has arguments and no results; a backward entry has the gradients of the results
alone. With real data a tensor's leaf holds the path of its file and nothing else, so dtype and
shape come from the file. Both files may have any name and place where both are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, NameFormatError
from tensorprobe.names import Direction, parse_checker_call
from tensorprobe.records import CallRecord, DumpInfo, Frame, Value
from tensorprobe.store.call_stacks import parse_stacks
from tensorprobe.store.data_folder import DataFolder, inside
from tensorprobe.store.dump import RankDump
from tensorprobe.store.entry_file import DAMAGED, map_file, parse_or_damaged
from tensorprobe.store.json_members import members_of
from tensorprobe.store.json_text import parse_json, parse_start_of_json
from tensorprobe.store.leaf_decode import KnownShapes, LeafDecoder
from tensorprobe.store.leaves import CallLeaves

__all__ = ["is_checker_file", "open_checker_files"]

_FILE = re.compile(r"(?P<kind>forward|backward|stack)_info_(?P<process>[0-9]{1,18})\.json")
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


def is_checker_file(name: str) -> bool:
    """Whether a file's name is one of the three that the tool writes.

    >>> is_checker_file("forward_info_2861.json")
    True
    """
    return _FILE.fullmatch(name) is not None


def open_checker_files(path: Path, info: DumpInfo, *, backward: Path | None = None) -> RankDump:
    """Open the three files of one process; any one of them may be given, any may be missing.

    Args:
        path: one of the three; the forward file, whatever its name, if the backward file is given.
        info: what is known of the dump.
        backward: the backward file; by default the one beside.

    Raises:
        DumpError: neither the forward nor the backward file can be read, or one that is given is
            not there.
    """
    match = _FILE.fullmatch(path.name)
    if match is None and backward is None:
        raise DumpError(f"{path} is no file of api_accuracy_checker; give a forward_info_*.json")
    process = None if match is None else match["process"]
    raw: dict[str, tuple[Direction, Any]] = {}
    problems: list[str] = []
    has_data = False
    for direction in _DIRECTIONS:
        file_name = f"{direction}_info_{process}.json"
        if backward is not None:
            file_name = path.name if direction == "forward" else backward.name
        try:
            file = inside(path.parent, file_name)
            if backward is not None:
                file = _given(path if direction == "forward" else backward)
            text = bytes(map_file(file))
            entries = _parse_object(file, text, problems)
        except DumpError as err:
            if backward is not None:
                raise
            problems.append(str(err))
            continue
        has_data |= b'"datapath"' in text
        for key, value in entries.items():
            try:
                raw[str(parse_checker_call(key, direction))] = (direction, value)
            except NameFormatError as err:
                problems.append(f"{file_name}: {err}")
    if not raw and problems:
        raise DumpError("; ".join(problems))
    data = (
        DataFolder(path.parent) if backward is None else _TwoFolders(path.parent, backward.parent)
    )
    return RankDump(
        path,
        replace(
            info,
            process=info.process if process is None else int(process),
            task="tensor" if has_data else "statistics",
            level="L1",
            tool="api_accuracy_checker",
        ),
        _CheckerSource(raw, data),
        data,
        read_stacks=lambda: {} if process is None else _read_stacks(path.parent, process),
        problems=problems,
    )


def _given(path: Path) -> Path:
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise DumpError(f"{path} {what}; check the path")
    return path


class _TwoFolders(DataFolder):
    """The data of two files that lie apart, each beside its own."""

    def __init__(self, forward: Path, backward: Path) -> None:
        super().__init__(forward)
        self._backward = DataFolder(backward)

    def _inside(self, data_name: str) -> Path:
        is_backward = data_name.startswith("backward_real_data/")
        return self._backward._inside(data_name) if is_backward else super()._inside(data_name)


def _parse_object(file: Path, text: bytes, problems: list[str]) -> Mapping[str, Any]:
    try:
        parsed = parse_json(text)
    except DumpError as err:
        split = _split(file, text, problems)
        if split:
            return split
        # Written line by line: everything before the damage is good.
        parsed = parse_start_of_json(text)
        if not isinstance(parsed, dict) or not parsed:
            raise DumpError(f"{file} is {err}; dump it again or give another file") from err
        lost = parsed.popitem()[0]
        problems.append(f"{file.name} is {err}; {len(parsed)} calls before {lost} are read")
    if not isinstance(parsed, dict):
        raise DumpError(f"{file} is no dump: wanted an object with one entry per call")
    return parsed


def _split(file: Path, text: bytes, problems: list[str]) -> dict[str, Any]:
    """Parse each call of a file by itself; nothing where the file is not whole."""
    found: dict[str, Any] = {}
    lost: list[str] = []
    end = 0
    for member in members_of(text):
        end = member.end
        name, value = (
            parse_or_damaged(part) for part in (member.name, text[member.start : member.end])
        )
        if isinstance(name, str) and value is not DAMAGED:
            found[name] = value
        else:
            lost.append(name if isinstance(name, str) else "a call")
    if text[end:].strip() != b"}":
        return {}
    problems.extend(f"{file.name}: {name}: its record is no valid JSON" for name in lost)
    return found


def _read_stacks(folder: Path, process: str) -> Mapping[str, tuple[Frame, ...]]:
    path = inside(folder, f"stack_info_{process}.json")
    if not path.exists():
        return {}
    try:
        stacks = parse_stacks(bytes(map_file(path)))
        return {str(parse_checker_call(key, "forward")): stack for key, stack in stacks.items()}
    except (DumpError, NameFormatError) as err:
        raise DumpError(f"{path}: {err}") from err


class _CheckerSource:
    """The calls of one process: the forward ones, then the backward ones."""

    def __init__(self, raw: dict[str, tuple[Direction, Any]], data: DataFolder) -> None:
        self._raw = raw
        self._data = data
        self._shapes: KnownShapes = {}

    @cached_property
    def names(self) -> Sequence[str]:
        return tuple(self._raw)

    def read(self, name: str) -> tuple[CallRecord, list[str]]:
        direction, value = self._raw[name]
        problems: list[str] = []
        decoder = LeafDecoder(problems, self._shapes)

        def decode_all(raw: list[Any]) -> tuple[Value, ...]:
            if not decoder.has_room(len(raw)):
                return ()
            return tuple(decoder.decode(self._modern(item, problems)) for item in raw)

        if direction == "backward":
            if not isinstance(value, list):
                raise DumpError(f"the entry is {type(value).__name__}, wanted a list")
            return CallRecord(name, inputs=decode_all(value)), problems
        args = value.get("args") if isinstance(value, dict) else None
        kwargs = value.get("kwargs") if isinstance(value, dict) else None
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise DumpError("the entry has no list of args and object of kwargs")
        named = dict(zip(kwargs, decode_all(list(kwargs.values())), strict=False))
        return CallRecord(name, inputs=decode_all(args), kwargs=named), problems

    def leaves(self) -> Iterator[CallLeaves | str]:
        return iter(self.names)

    def _modern(self, raw: Any, problems: list[str]) -> Any:
        """Rewrite a leaf in the words of today's dumps."""
        if isinstance(raw, list):
            return [self._modern(item, problems) for item in raw]
        if not isinstance(raw, dict):
            return raw
        if raw.get("type") != "torch.Tensor":
            is_leaf = isinstance(raw.get("type"), str)
            return (
                raw if is_leaf else {key: self._modern(item, problems) for key, item in raw.items()}
            )
        leaf = dict(raw)
        for key in ("Max", "Min"):
            # The plain value passes over what is not finite; the origin does not.
            origin = leaf.pop(f"{key}_origin", None)
            if origin is not None:
                leaf[f"{key}_finite"] = leaf.get(key)
                leaf[key] = origin
        if "datapath" in leaf:
            return self._described(leaf, problems)
        return leaf

    def _described(self, leaf: dict[str, Any], problems: list[str]) -> dict[str, Any]:
        path = leaf.pop("datapath")
        try:
            data_name = _relative_to_json(path)
            dtype, shape = self._data.describe(data_name)
        except DumpError as err:
            problems.append(str(err))
            return {"type": "torch.Tensor (unreadable)"}
        return {**leaf, "dtype": dtype, "shape": list(shape), "data_name": data_name}


def _relative_to_json(datapath: Any) -> str:
    """Cut a data path down to its part below the JSON files; older ones are absolute and stale."""
    parts = datapath.split("/") if isinstance(datapath, str) else []
    for index, part in enumerate(parts):
        if part in ("forward_real_data", "backward_real_data"):
            return "/".join(parts[index:])
    raise DumpError(f"the data path {datapath!r} does not lead into forward_real_data")
