"""Read stack.json and construct.json: where each call was made, and in which module.

stack.json comes in three forms: numbered groups of names that share a stack, the older map from
name to frames, and the lines of our journal, `["{name}", {stack}]` as a call begins,
`[{stack}, [frames]]` before the first in a place, and `["{name}", null]` where a call has finished
and its values are still on a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.records import Frame
from tensorprobe.store.entry_file import map_file
from tensorprobe.store.json_text import parse_json

__all__ = [
    "parse_begun_calls",
    "parse_frame",
    "parse_parents",
    "parse_stack_journal",
    "parse_stacks",
    "read_stack_file",
]

Stacks = dict[str, tuple[Frame, ...]]


def parse_frame(text: str) -> Frame:
    r"""Take one frame of a stack apart.

    >>> parse_frame("File train.py, line 22, in forward, \n return self.fc(x)")
    Frame(path='train.py', line=22, function='forward', source='return self.fc(x)')
    """
    # From the right, with no pattern: a hostile text must not cost more than its length.
    head, _, source = text.partition("\n")
    place, is_frame, function = head.rstrip(", ").rpartition(", in ")
    path, has_line, line = place.rpartition(", line ")
    is_number = line.isascii() and line.isdigit() and len(line) < 10
    if not is_frame or not has_line or not is_number or not path.startswith("File "):
        return Frame(text, 0, "", "")
    return Frame(path.removeprefix("File "), int(line), function, source.strip())


def parse_stacks(text: bytes) -> Stacks:
    """Return the stack of every call that stack.json names.

    Raises:
        DumpError: it is no stack.json.
    """
    raw = parse_json(text)
    if not isinstance(raw, dict):
        raise DumpError("not a stack file: wanted an object")
    stacks: Stacks = {}
    for key, value in raw.items():
        match value:
            case [list(names), list(frames)]:
                shared = _frames(frames)
                stacks.update((name, shared) for name in names if isinstance(name, str))
            case list(frames):
                stacks[key] = _frames(frames)
            case _:
                raise DumpError(f"not a stack file: {key!r} holds no list")
    return stacks


def read_stack_file(path: Path) -> Stacks:
    """Return the stack of every call that a stack.json, whatever its name is, holds.

    Raises:
        DumpError: it cannot be read or is no stack.json.
    """
    try:
        return parse_stacks(bytes(map_file(path)))
    except DumpError as err:
        raise DumpError(f"{path}: {err}") from err


def parse_stack_journal(text: bytes) -> Stacks:
    """Return the stacks of a run that ended before its stack.json was made."""
    frames_of: dict[int, tuple[Frame, ...]] = {}
    stacks: Stacks = {}
    # The last line may be cut short; it has no newline then.
    for line in text.split(b"\n")[:-1]:
        match parse_json(line):
            case [int(number), list(frames)]:
                frames_of[number] = _frames(frames)
            case [str(name), int(number)] if number in frames_of:
                stacks[name] = frames_of[number]
            case [str(), None]:
                pass
            case _:
                raise DumpError(f"not a stack journal: it holds the line {line[:80]!r}")
    return stacks


def parse_begun_calls(text: bytes) -> dict[str, bool]:
    """Return the calls that a journal of stacks names, in order, and whether each has finished.

    Only of those without a record is that known: they were under way, or their values were.
    """
    begun: dict[str, bool] = {}
    for line in text.split(b"\n")[:-1]:
        match parse_json(line):
            case [str(name), place]:
                begun[name] = place is None
    return begun


def parse_parents(text: bytes) -> dict[str, str | None]:
    """Return the enclosing module call of every call that construct.json names.

    Raises:
        DumpError: it is no construct.json.
    """
    raw: Any = parse_json(text)
    if not isinstance(raw, dict):
        raise DumpError("not a construct file: wanted an object")
    parents: dict[str, str | None] = raw
    if not all(value is None or isinstance(value, str) for value in parents.values()):
        raise DumpError("not a construct file: wanted a name or null for every call")
    return parents


def _frames(raw: list[Any]) -> tuple[Frame, ...]:
    return tuple(parse_frame(frame) for frame in raw if isinstance(frame, str))
