"""The members of an object are found without parsing what they hold."""

from __future__ import annotations

import json
import random
from typing import Any

from tensorprobe.store.json_members import members_of


def parts(text: bytes) -> list[tuple[bytes, bytes]]:
    return [(m.name, text[m.start : m.end].strip()) for m in members_of(text)]


def test_members_are_those_of_the_parsed_object() -> None:
    chance = random.Random(3)

    def value(depth: int) -> Any:
        kind = chance.randrange(5 if depth < 4 else 3)
        if kind == 0:
            return chance.choice((1, -2.5, None, True, 1e300))
        if kind < 3:
            return "".join(chance.choice('a"\\{}[],:\n é') for _ in range(chance.randrange(8)))
        if kind == 3:
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        return {str(value(9)): value(depth + 1) for _ in range(chance.randrange(4))}

    for _ in range(300):
        whole = {f"{number}{value(9)}": value(0) for number in range(chance.randrange(5))}
        text = json.dumps(whole, indent=chance.choice((None, 1))).encode()
        assert {json.loads(name): json.loads(v) for name, v in parts(text)} == whole


def test_what_no_parser_takes_stands_for_itself_alone() -> None:
    endless, deep = b"9" * 5000, b"[" * 3000 + b"]" * 3000
    text = b'{"a": ' + endless + b', "b": ' + deep + b', "c": 3}'
    assert parts(text) == [(b'"a"', endless), (b'"b"', deep), (b'"c"', b"3")]


def test_a_cut_object_gives_what_is_whole() -> None:
    assert parts(b'{"a": 1, "b": {"c"') == [(b'"a"', b"1")]
    assert parts(b'{"a": "x') == []
    assert parts(b"[1]") == []
