"""Write stack.json: each distinct stack once, with the calls that were made there.

The journal names a stack with each call, so that it can grow; the file that the older tools read
groups the calls by stack, and is written at the end.
"""

from __future__ import annotations

import json
import os
from json.encoder import encode_basestring_ascii

from tensorprobe.records import Frame
from tensorprobe.store.journal import Journal
from tensorprobe.store.tensor_bytes import write_whole_file

__all__ = ["StackFile"]


class StackFile:
    """The stacks of one dump while it is written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._numbers: dict[tuple[Frame, ...], int] = {}
        self._names: list[list[str]] = []
        # The same stack mostly comes as the same object, and its hash reads all its texts.
        self._objects: dict[int, tuple[tuple[Frame, ...], int]] = {}

    def add(self, name: str, stack: tuple[Frame, ...]) -> None:
        """Add a call.

        Raises:
            OSError: it could not be written.
        """
        number = self._find(stack)
        text = ""
        if number is None:
            number = len(self._names)
            text = json.dumps([number, [str(frame) for frame in stack]]) + "\n"
        text += f"[{encode_basestring_ascii(name)}, {number}]\n"
        self._journal.append(text.encode())
        if number == len(self._names):
            self._numbers[stack] = number
            self._names.append([])
        self._names[number].append(name)

    def publish(self) -> None:
        """Write the final file in place of the journal.

        Raises:
            OSError: it could not be written; the journal stays, and is readable.
        """
        groups = [
            f" {json.dumps(str(number))}: {json.dumps([names, [str(f) for f in stack]])}"
            for (stack, number), names in zip(self._numbers.items(), self._names, strict=True)
        ]
        text = "{\n" + ",\n".join(groups) + "\n}" if groups else "{}"
        path = self._journal.path
        pieces = [text.encode()]
        try:
            write_whole_file(path, pieces)
        except FileNotFoundError:
            # The folder was removed under us.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_whole_file(path, pieces)
        self._journal.remove()

    def _find(self, stack: tuple[Frame, ...]) -> int | None:
        known = self._objects.get(id(stack))
        if known is not None and known[0] is stack:
            return known[1]
        number = self._numbers.get(stack)
        if number is not None:
            self._objects[id(stack)] = (stack, number)
        return number
