"""Parse JSON as the older tools write it: with bare NaN and Infinity, and large.

`jiter` reads it four times faster than the standard library, which serves where jiter is not
installed: training machines have what they have.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorprobe.errors import DumpError

jiter: Any
try:
    import jiter
except ImportError:
    jiter = None

# Below this, pausing the collector costs more than it saves.
_LARGE = 1 << 20
# What is parsed takes up to twenty times its text.
_LARGEST = 1 << 29

__all__ = ["collector_paused", "parse_json", "parse_start_of_json"]


def parse_json(text: bytes) -> Any:
    """Parse one JSON text.

    >>> parse_json(b'{"Max": NaN, "Min": -Infinity}')
    {'Max': nan, 'Min': -inf}

    Raises:
        DumpError: it is no JSON; the message says where, but not in which file.
    """
    if len(text) > _LARGEST:
        raise DumpError(f"{len(text):,} bytes of JSON in one piece, more than {_LARGEST:,}")
    try:
        if len(text) < _LARGE:
            return _parse(text)
        with collector_paused():
            return _parse(text)
    except (ValueError, RecursionError) as err:
        raise DumpError(f"not valid JSON: {_first_line(err)}") from err


def _parse(text: bytes) -> Any:
    if jiter is None:
        return json.loads(text)
    try:
        return jiter.from_json(text)
    except ValueError:
        # jiter refuses half of a surrogate pair, which a file name in a stack may hold.
        if b"\\ud" not in text and b"\\uD" not in text:
            raise
        return json.loads(text)


def parse_start_of_json(text: bytes) -> Any:
    """Parse as much of a JSON text as is well formed from its start, or None if nothing is.

    The innermost, last value may be cut short, so the caller drops it.

    >>> parse_start_of_json(b'{"a": 1, "b": {"c": 2')
    {'a': 1, 'b': {'c': 2}}
    """
    if jiter is None or len(text) > _LARGEST:
        return None
    for _ in range(2):
        try:
            with collector_paused():
                return jiter.from_json(text, partial_mode=True)
        except ValueError as err:
            text = text[: _error_offset(text, str(err))]
    return None


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking millions of new objects that are all alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _error_offset(text: bytes, message: str) -> int:
    """Find the byte that jiter's message names by line and column, both from 1."""
    words = message.rpartition(" at line ")[2].split(" column ")
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return 0
    line, column = int(words[0]), int(words[1])
    start = 0
    for _ in range(line - 1):
        start = text.find(b"\n", start) + 1
    return max(0, start + column - 1)


def _first_line(err: BaseException) -> str:
    lines = str(err).splitlines()
    return lines[0] if lines else type(err).__name__
