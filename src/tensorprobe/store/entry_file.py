"""A dump.json or debug.json as an index of its entries, each parsed when it is asked for.

Both we and the older tools put every entry of `data` on a line of its own, two spaces in:

    {
     "task": "statistics",
     "data": {
      "Functional.linear.0.forward": {…},
      "Functional.relu.0.forward": {…}
     }
    }

A raw newline cannot stand inside a JSON string, so a newline, two spaces and a quote begin an
entry and nothing else. Finding those takes a fraction of the time of parsing, needs no memory, and
a file that ends in the middle still gives all the entries before. A file that is laid out
differently is parsed as a whole.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.store.json_members import members_of
from tensorprobe.store.json_text import parse_json, parse_start_of_json
from tensorprobe.store.layout import PART_SUFFIX

__all__ = ["DAMAGED", "EntryFile", "map_file", "open_entry_file", "parse_or_damaged"]

_FIRST_LINE = b'{\n "'
_DATA = b'\n "data": {'
# An entry's beginning with its name, or the end of the data.
# Bounded: a hostile name must not make the search keep its every character.
_ENTRY_OR_END = re.compile(rb'\n (?:\}| "([^"\\\n]{0,20000}(?:\\.[^"\\\n]{0,20000}){0,500})":)')
# The header is six short lines; a `data` that starts later belongs to something else.
_HEADER_LIMIT = 1 << 20
# A parsed record takes up to twenty times its text; the largest that are true have thousands of
# tensors of 300 bytes each.
_MOST_RECORD_BYTES = 1 << 24
# Above this, a file of another layout is indexed, too.
_MOST_WHOLE_BYTES = 1 << 26
# No run has so many calls in a step, and the index of more would be all of this machine's memory.
_MOST_CALLS = 5_000_000
_LONGEST_NAME = 10_000
_SOME = 10


class EntryFile:
    """The entries of one file.

    Attributes:
        path: the file.
        header: the top-level keys before and after `data`.
        problems: what is wrong with the file as a whole, in words.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        entries: dict[str, Any],
        *,
        text: mmap.mmap | bytes | None = None,
        problems: tuple[str, ...] = (),
    ) -> None:
        """Keep the entries: parsed ones, or with `text` their places in it."""
        self.path = path
        self.header = header
        long = [name for name in entries if len(name) > _LONGEST_NAME]
        for name in long:
            del entries[name]
        self.problems = (
            *problems,
            *(f"a call with a name of {len(name)} characters is left out" for name in long[:_SOME]),
        )
        self._entries = entries
        self._text = text

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The entries' names in the order of the file."""
        return tuple(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, name: str) -> Any:
        """Parse one entry.

        Raises:
            DumpError: the entry is no JSON.
        """
        place = self._entries[name]
        if self._text is None:
            return place
        start, end = place
        if end - start > _MOST_RECORD_BYTES:
            raise DumpError(
                f"its record has {end - start:,} bytes, more than {_MOST_RECORD_BYTES:,}"
            )
        return parse_json(self._text[start:end])

    def pieces(self) -> Iterator[tuple[str, Any]]:
        """Yield every name with its entry: the text of it, or what was parsed.

        Of one that `read` would refuse for its size, `DAMAGED`.
        """
        text = self._text
        if text is None:
            yield from self._entries.items()
            return
        for name, (start, end) in self._entries.items():
            yield name, text[start:end] if end - start <= _MOST_RECORD_BYTES else DAMAGED


DAMAGED = object()
"""Stands for an entry that is no JSON."""


def parse_or_damaged(text: bytes) -> Any:
    """Parse an entry, or return `DAMAGED`."""
    try:
        return parse_json(text)
    except DumpError:
        return DAMAGED


def map_file(path: Path) -> mmap.mmap | bytes:
    """Map a regular file into memory; an empty one gives empty bytes.

    Raises:
        DumpError: it is missing, no regular file, or may not be read.
    """
    try:
        # A pipe would block the open for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DumpError(f"{path} is no regular file; give a dump's file or folder")
            if status.st_size == 0:
                return b""
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except FileNotFoundError as err:
        raise DumpError(f"{path} does not exist; check the path") from err
    except (OSError, ValueError) as err:
        raise DumpError(f"{path} cannot be read: {err}") from err


def open_entry_file(path: Path, *, most_calls: int = _MOST_CALLS) -> EntryFile:
    """Index the entries of a dump.json or debug.json, whole, cut short or damaged.

    Args:
        path: the file.
        most_calls: how many entries are indexed at most.

    Raises:
        DumpError: the file cannot be read or is no dump at all.
    """
    text = map_file(path)
    if path.name.endswith(PART_SUFFIX) and text.find(_DATA, 0, _HEADER_LIMIT) < 0:
        # Killed before the first line was whole: a dump that holds nothing yet.
        return EntryFile(path, {}, {}, problems=("nothing was recorded",))
    if text[: len(_FIRST_LINE)] == _FIRST_LINE:
        indexed = _index_by_lines(path, text, most_calls)
        if indexed is not None:
            return indexed
    return _parse_whole(path, bytes(text), most_calls)


def _index_by_lines(path: Path, text: mmap.mmap | bytes, most_calls: int) -> EntryFile | None:
    """Index a file in the usual layout; None if it turns out to have another."""
    data_start = text.find(_DATA, 0, _HEADER_LIMIT)
    if data_start < 0:
        return None
    body_start = data_start + len(_DATA)
    names: list[bytes] = []
    starts: list[int] = []
    # Where each entry ends: before the comma and the newline of the next, or of the closing brace.
    ends: list[int] = []
    rest: bytes | None = None
    if text[body_start : body_start + 1] == b"}":
        rest = text[body_start + 1 :]
    else:
        for match in _ENTRY_OR_END.finditer(text, body_start):
            ends.append(match.start())
            if match[1] is None:
                rest = text[match.end() :]
                break
            if len(names) == most_calls:
                # What follows is no end, so that the file counts as cut short here.
                break
            names.append(match[1])
            starts.append(match.end())
    if rest is None and len(ends) == len(names):
        ends.append(len(text))
    try:
        header = parse_json(text[:data_start].rstrip(b", \n") + b"}")
        closing = None if rest is None else _closing_keys(rest)
        places = zip(starts, (_without_comma(text, end) for end in ends[1:]), strict=True)
        entries: dict[str, Any] = dict(zip(map(_name_text, names), places, strict=True))
    except DumpError:
        return None
    problems: list[str] = []
    if len(names) == most_calls and rest is None:
        problems.append(_too_many(most_calls))
    elif closing is None:
        problems.append("it ends in the middle; the calls up to there are read")
    if rest is None:
        problems.extend(_mend_last_entry(text, entries))
    return EntryFile(path, header | (closing or {}), entries, text=text, problems=tuple(problems))


def _name_text(name: bytes) -> str:
    if b"\\" not in name and name.isascii():
        return name.decode("ascii")
    text: str = parse_json(b'"' + name + b'"')
    return text


def _closing_keys(rest: bytes) -> dict[str, Any] | None:
    """Parse the keys after `data`: what we say about the dump once it is closed.

    Returns:
        The keys, or None where the file stops before its end.

    Raises:
        DumpError: what follows belongs to something else.
    """
    rest = rest.strip()
    if rest == b"}":
        return {}
    if rest and not rest.startswith(b","):
        raise DumpError("something else follows the data")
    if len(rest) > _MOST_RECORD_BYTES:
        return None
    keys = parse_or_damaged(b"{" + rest[1:])
    return None if keys is DAMAGED else keys


def _mend_last_entry(text: mmap.mmap | bytes, entries: dict[str, Any]) -> Iterator[str]:
    """In a file that is cut short the last entry may be broken, or followed by half a name."""
    if not entries:
        return
    last = next(reversed(entries))
    start, end = entries[last]
    before_name = text.rfind(b",\n", start, end)
    for whole in (end, before_name):
        if whole >= 0 and parse_or_damaged(text[start:whole]) is not DAMAGED:
            entries[last] = (start, whole)
            return
    del entries[last]
    yield f"the last call, {last}, is incomplete and left out"


def _too_many(most_calls: int) -> str:
    return f"it holds more than {most_calls:,} calls; the first ones are read"


def _parse_whole(path: Path, text: bytes, most_calls: int) -> EntryFile:
    problems: tuple[str, ...] = ()
    if len(text) > _MOST_WHOLE_BYTES:
        split = _split(path, text, most_calls)
        if split is not None:
            return split
    try:
        parsed = parse_json(text)
    except DumpError as err:
        split = _split(path, text, most_calls)
        if split is not None:
            return split
        parsed = parse_start_of_json(text)
        data = parsed.get("data") if isinstance(parsed, dict) else None
        if not isinstance(data, dict) or not data:
            raise DumpError(f"{path} is {_no_dump(path, text, err)}") from err
        lost = data.popitem()[0]
        problems = (f"it is {err}; {len(data)} calls before {lost} are read",)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("data"), dict):
        raise DumpError(
            f'{path} is no dump: it has no "data" object; give a dump.json or debug.json'
        )
    entries = parsed.pop("data")
    return EntryFile(path, parsed, entries, problems=problems)


def _split(path: Path, text: bytes, most_calls: int) -> EntryFile | None:
    """Index a file that is whole, though something in it cannot be parsed; None if it is not."""
    problems: tuple[str, ...] = ()
    header: dict[str, Any] = {}
    data: dict[str, tuple[int, int]] | None = None
    end = 0
    for member in members_of(text):
        end = member.end
        name = _parsed_name(member.name)
        if name == "data":
            data = {
                entry_name: (entry.start, entry.end)
                for entry in islice(members_of(text, member.start), most_calls + 1)
                if (entry_name := _parsed_name(entry.name)) is not None
            }
            if len(data) > most_calls:
                data.popitem()
                problems = (_too_many(most_calls),)
        elif name is not None and member.end - member.start <= _MOST_RECORD_BYTES:
            value = parse_or_damaged(text[member.start : member.end])
            header |= {} if value is DAMAGED else {name: value}
    if not data or text[end:].strip() != b"}":
        return None
    return EntryFile(path, header, data, text=text, problems=problems)


def _parsed_name(name: bytes) -> str | None:
    text = parse_or_damaged(name)
    return text if isinstance(text, str) else None


def _no_dump(path: Path, text: bytes, err: DumpError) -> str:
    """Say what a file is that holds no call, and what to give instead."""
    if not text.strip(b"\0 \n\r\t"):
        return "empty; dump it again, or give another file"
    if path.suffix == ".json":
        return f"{err}; it is damaged: dump it again, or give another file"
    return f"no dump: it is {err}; give a dump.json, or the folder that holds one"


def _without_comma(text: mmap.mmap | bytes, end: int) -> int:
    return end - 1 if text[end - 1 : end] == b"," else end
