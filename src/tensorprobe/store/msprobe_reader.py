"""Read a rank folder as msprobe and we write it: dump.json or debug.json with its companions.

    dump.json ─► EntryFile ─► one CallRecord per entry
    stack.json, construct.json ─► read when a stack or a parent is asked for

A run that was killed leaves `*.json.part` journals in place of the files; they read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tensorprobe.errors import DumpError, NewerFormatError
from tensorprobe.names import is_parameter_gradients
from tensorprobe.records import CallRecord, DictValue, DumpInfo, Frame, ListValue, Value
from tensorprobe.store.call_stacks import (
    parse_begun_calls,
    parse_parents,
    parse_stack_journal,
    parse_stacks,
)
from tensorprobe.store.data_folder import DataFolder, inside
from tensorprobe.store.dump import CallSource, RankDump
from tensorprobe.store.entry_file import (
    DAMAGED,
    EntryFile,
    map_file,
    open_entry_file,
    parse_or_damaged,
)
from tensorprobe.store.error_log import read_error_log
from tensorprobe.store.layout import (
    DATA_FOLDER,
    DEFAULTS_KEY,
    ERROR_LOG,
    FORMAT_VERSION,
    GAPS_KEY,
    OWN_KEY,
    PART_SUFFIX,
    TUPLES_KEY,
)
from tensorprobe.store.leaf_decode import KnownShapes, LeafDecoder, is_size
from tensorprobe.store.leaf_walk import LeafWalker
from tensorprobe.store.leaves import CallLeaves

__all__ = ["open_rank_file"]

_Parsed = TypeVar("_Parsed")
# Of the calls that a killed run was at, the last are named.
_LISTED = 10


def open_rank_file(path: Path, info: DumpInfo) -> RankDump:
    """Open a dump.json or debug.json, or the journal of one.

    Args:
        path: the file.
        info: what the folders' names tell: rank, step or process.

    Raises:
        DumpError: it cannot be read or is no dump.
    """
    entries = open_entry_file(path)
    info = _complete_info(info, entries)
    folder = path.parent
    problems = list(entries.problems)
    if path.name.endswith(PART_SUFFIX):
        # That a journal has no end needs no second sentence.
        problems[:1] = [f"the dump was not closed; {len(entries)} calls are there"]
        problems += _missed_calls(folder, entries.names)
    problems += [*_reported_gaps(entries.header.get(GAPS_KEY)), *_logged_gaps(folder)]
    data = DataFolder(folder, DATA_FOLDER)
    is_part = path.name.endswith(PART_SUFFIX)
    source: CallSource = _EntrySource(
        entries, is_saved=info.level == "debug", on_their_way=data if is_part else None
    )
    if info.task == "structure":
        source = _StructureSource(folder)
    return RankDump(
        path,
        info,
        source,
        data,
        read_stacks=lambda: _read_stacks(folder),
        read_parents=lambda: _read_parents(folder),
        problems=problems,
    )


def _complete_info(info: DumpInfo, entries: EntryFile) -> DumpInfo:
    header = entries.header
    own = header.get(OWN_KEY)
    is_part = entries.path.name.endswith(PART_SUFFIX)
    info = replace(
        info,
        task=_text(header, "task") or "statistics",
        level=_text(header, "level"),
        framework=_text(header, "framework") or "pytorch",
        complete=not entries.problems and not is_part,
    )
    if not isinstance(own, dict):
        # Nobody else has such files; one that is killed early has not said so yet.
        return replace(info, tool="tensorprobe" if is_part else "msprobe")
    version = own.get("format")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{entries.path} has the format {version!r} of tensorprobe {own.get('version')}; "
            f"this one reads up to {FORMAT_VERSION}: upgrade tensorprobe"
        )
    devices = own.get("devices")
    return replace(
        info,
        # The folders' names may say less: a second process writes beside its rank's folder.
        rank=info.rank if info.rank is not None else _whole(own, "rank"),
        step=info.step if info.step is not None else _whole(own, "step"),
        tool="tensorprobe",
        tool_version=_text(own, "version"),
        torch_version=_text(own, "torch"),
        python_version=_text(own, "python"),
        run=_text(own, "run"),
        devices=tuple(str(name) for name in devices) if isinstance(devices, list) else (),
    )


def _text(mapping: Mapping[str, Any], key: str) -> str | None:
    value = mapping.get(key)
    return value if isinstance(value, str) else None


def _whole(mapping: Mapping[str, Any], key: str) -> int | None:
    value = mapping.get(key)
    return value if is_size(value) else None


def _reported_gaps(raw: Any) -> list[str]:
    return [gap for gap in raw if isinstance(gap, str)] if isinstance(raw, list) else []


def _logged_gaps(folder: Path) -> list[str]:
    """Return what the writer noted while it ran; of another tool's log, nothing."""
    try:
        path = inside(folder, ERROR_LOG)
        return read_error_log(bytes(map_file(path))) if path.exists() else []
    except DumpError as err:
        return [str(err)]


class _EntrySource:
    """The calls of one EntryFile.

    Args:
        entries: the file.
        is_saved: whether it holds saved values.
        on_their_way: where the data are whose names a killed run may have written before them.
    """

    def __init__(
        self, entries: EntryFile, *, is_saved: bool, on_their_way: DataFolder | None = None
    ) -> None:
        self._entries = entries
        self._is_saved = is_saved
        self._on_their_way = on_their_way
        self._shapes: KnownShapes = {}

    @property
    def names(self) -> Sequence[str]:
        return self._entries.names

    def read(self, name: str) -> tuple[CallRecord, list[str]]:
        problems: list[str] = []
        raw = self._entries.read(name)
        if self._on_their_way is not None and self._on_their_way.is_there:
            raw = _without_missing_data(raw, self._on_their_way, problems)
        return self._call(name, raw, problems), problems

    def leaves(self) -> Iterator[CallLeaves | str]:
        if self._on_their_way is not None and self._on_their_way.is_there:
            yield from self.names
            return
        walker = LeafWalker(self._shapes, is_saved=self._is_saved)
        for name, piece in self._entries.pieces():
            if isinstance(piece, bytes):
                walked = walker.text_call(name, piece)
                if walked is not None:
                    yield walked
                    continue
                piece = parse_or_damaged(piece)
            yield name if piece is DAMAGED else walker.call(name, piece) or name

    def _call(self, name: str, raw: Any, problems: list[str]) -> CallRecord:
        decoder = LeafDecoder(problems, self._shapes)
        decode = decoder.decode
        if self._is_saved:
            return CallRecord(name, saved=(decode(raw),))
        if not isinstance(raw, dict):
            raise DumpError(f"the entry is {type(raw).__name__}, wanted an object")
        if is_parameter_gradients(name):
            # Each gradient stands in a list of its own.
            single = {
                key: value[0] if isinstance(value, list) and len(value) == 1 else value
                for key, value in raw.items()
            }
            return CallRecord(name, parameters=_decoded(decoder, single, "parameters"))
        is_recompute = raw.get("is_recompute")
        call = CallRecord(
            name,
            inputs=_values(decoder, raw, "input_args" if "input_args" in raw else "input"),
            kwargs=_named_values(decoder, raw, "input_kwargs"),
            outputs=_values(decoder, raw, "output"),
            parameters=_named_values(decoder, raw, "parameters"),
            is_recompute=is_recompute if isinstance(is_recompute, bool) else None,
            defaults=_named_values(decoder, raw, DEFAULTS_KEY),
        )
        return _with_tuples(call, raw.get(TUPLES_KEY))


def _without_missing_data(raw: Any, data: DataFolder, problems: list[str]) -> Any:
    """Return what an entry holds without the names of data that had not been written."""
    if isinstance(raw, list):
        return [_without_missing_data(value, data, problems) for value in raw]
    if not isinstance(raw, dict):
        return raw
    data_name = raw.get("data_name")
    if isinstance(data_name, str) and data_name and not data.holds(data_name):
        problems.append(f"the data file {data_name} had not been written")
        return {key: value for key, value in raw.items() if key != "data_name"}
    return {key: _without_missing_data(value, data, problems) for key, value in raw.items()}


def _values(decoder: LeafDecoder, raw: dict[str, Any], key: str) -> tuple[Value, ...] | None:
    values = raw.get(key)
    if isinstance(values, list):
        if decoder.has_room(len(values)):
            return tuple([decoder.decode(value) for value in values])
    elif values is not None:
        decoder.problems.append(f"{key} is {type(values).__name__}, wanted a list")
    return None


def _named_values(decoder: LeafDecoder, raw: dict[str, Any], key: str) -> dict[str, Value] | None:
    return _decoded(decoder, raw.get(key), key)


def _decoded(decoder: LeafDecoder, values: Any, key: str) -> dict[str, Value] | None:
    if isinstance(values, dict):
        if decoder.has_room(len(values)):
            return {name: decoder.decode(v, way=len(name)) for name, v in values.items()}
    elif values is not None:
        decoder.problems.append(f"{key} is {type(values).__name__}, wanted an object")
    return None


class _StructureSource:
    """The calls of a dump of task structure: names alone, from its companions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] | None = None

    @property
    def names(self) -> Sequence[str]:
        if self._names is None:
            names: dict[str, None] = {}
            for read in (_read_parents, _read_stacks):
                # What cannot be read is told where the stacks and the tree are asked for.
                with suppress(DumpError):
                    names |= dict.fromkeys(read(self._folder))
            self._names = list(names)
        return self._names

    def read(self, name: str) -> tuple[CallRecord, list[str]]:
        return CallRecord(name), []

    def leaves(self) -> Iterator[CallLeaves | str]:
        return iter(self.names)


def _with_tuples(call: CallRecord, paths: Any) -> CallRecord:
    """Turn the lists that the writer noted as tuples back into tuples."""
    if not isinstance(paths, list):
        return call
    known = {
        tuple(path)
        for path in paths
        if isinstance(path, list) and all(isinstance(part, str) for part in path)
    }

    def restore(value: Value, *path: str) -> Value:
        if isinstance(value, ListValue):
            items = tuple(restore(v, *path, str(i)) for i, v in enumerate(value.items))
            return ListValue(items, is_tuple=path in known)
        if isinstance(value, DictValue):
            return DictValue(tuple((key, restore(v, *path, key)) for key, v in value.items))
        return value

    def restore_all(section: str, values: tuple[Value, ...] | None) -> tuple[Value, ...] | None:
        if values is None:
            return None
        return tuple(restore(v, section, str(i)) for i, v in enumerate(values))

    kwargs = call.kwargs
    if kwargs is not None:
        kwargs = {key: restore(v, "kwargs", key) for key, v in kwargs.items()}
    return replace(
        call,
        inputs=restore_all("input", call.inputs),
        kwargs=kwargs,
        outputs=restore_all("output", call.outputs),
    )


def _read_stacks(folder: Path) -> Mapping[str, tuple[Frame, ...]]:
    return _read_companion(folder, "stack.json", parse_stacks, parse_stack_journal, {})


def _read_parents(folder: Path) -> Mapping[str, str | None]:
    return _read_companion(folder, "construct.json", parse_parents, _parse_parents_journal, {})


def _parse_parents_journal(text: bytes) -> dict[str, str | None]:
    # The journal is the file without its closing brace; its last line may be cut short.
    if not text:
        return {}
    try:
        return parse_parents(text.rstrip(b", \n") + b"}")
    except DumpError:
        return parse_parents(text[: max(text.rfind(b"\n"), 1)].rstrip(b",") + b"}")


def _missed_calls(folder: Path, names: Sequence[str]) -> list[str]:
    """Return in words which calls of a killed run had begun and have no record."""
    try:
        begun: dict[str, bool] = _read_companion(
            folder, "stack.json", lambda _: {}, parse_begun_calls, {}
        )
        stacks = _read_stacks(folder) if begun else {}
    except DumpError:
        # Told where the stacks are asked for.
        return []
    recorded = frozenset(names)
    missed = {name: has_ended for name, has_ended in begun.items() if name not in recorded}

    def shown(name: str) -> str:
        stack = stacks.get(name)
        return f"{name} ({stack[0].path}:{stack[0].line})" if stack else name

    waiting = [shown(name) for name, has_ended in missed.items() if has_ended]
    running = [shown(name) for name, has_ended in missed.items() if not has_ended]
    problems = [f"{name} had begun and not ended" for name in running[-_LISTED:]]
    if waiting:
        more = f"{', '.join(waiting[:-_LISTED][:1])}, … " if len(waiting) > _LISTED else ""
        problems.append(
            f"values of {len(waiting)} calls had not arrived from their device: {more}"
            + ", ".join(waiting[-_LISTED:])
        )
    return problems


def _read_companion(
    folder: Path,
    name: str,
    parse: Callable[[bytes], _Parsed],
    parse_journal: Callable[[bytes], _Parsed],
    absent: _Parsed,
) -> _Parsed:
    for file_name, parser in ((name, parse), (name + PART_SUFFIX, parse_journal)):
        path = inside(folder, file_name)
        if path.exists():
            try:
                return parser(bytes(map_file(path)))
            except DumpError as err:
                raise DumpError(f"{path}: {err}") from err
    return absent
