"""Find where the members of a JSON object stand without parsing what they hold.

One number of five thousand digits, or one value nested a thousand times, is refused by any parser,
and all that stands beside it with it. Here brackets are counted and texts passed over, so that each
member can be parsed on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Member", "members_of"]

_SIGN = re.compile(rb'["{}\[\],:]')
_BACKSLASH = ord("\\")
_SPACE = re.compile(rb"\s*")


class Member(NamedTuple):
    """One member of an object: its name as it is written, and where its value stands."""

    name: bytes
    start: int
    end: int


def members_of(text: bytes, start: int = 0) -> Iterator[Member]:
    """Yield the members of the object that begins at a place, as far as it is whole.

    >>> text = b'{"a": [1, {"b": "}"}], "c": 2}'
    >>> [(member.name, text[member.start : member.end].strip()) for member in members_of(text)]
    [(b'"a"', b'[1, {"b": "}"}]'), (b'"c"', b'2')]
    """
    opening = _SPACE.match(text, start)
    at = start if opening is None else opening.end()
    if text[at : at + 1] != b"{":
        return
    depth, name, value, last = 1, b"", -1, b""
    at += 1
    while (sign := _SIGN.search(text, at)) is not None:
        found, at = sign[0], sign.end()
        if found == b'"':
            at = _end_of_text(text, at)
            if depth == 1 and value < 0:
                last = text[sign.start() : at]
        elif found in b"{[":
            depth += 1
        elif found in b"}]" and depth > 1:
            depth -= 1
        elif depth > 1:
            continue
        elif found == b":":
            name, value = last, at
        else:
            if value >= 0:
                yield Member(name, value, sign.start())
            if found != b",":
                return
            value = -1


def _end_of_text(text: bytes, start: int) -> int:
    """Return the place behind the quote that ends a text, or the end of everything."""
    at = start
    while (quote := text.find(b'"', at)) >= 0:
        first = quote
        while first > start and text[first - 1] == _BACKSLASH:
            first -= 1
        if (quote - first) % 2 == 0:
            return quote + 1
        at = quote + 1
    return len(text)
