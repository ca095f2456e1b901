"""Write stack.json: each distinct stack once, with the calls that were made there.

The journal names a stack with each call, so that it can grow; the file that the older tools read
groups the calls by stack, and is written at the end. A call stands in the journal as soon as it
begins: which of them have no record is what a run was at when it was killed.
"""

from __future__ import annotations

import json
import os
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from tensorprobe.records import Frame
from tensorprobe.store.journal import Journal
from tensorprobe.store.tensor_bytes import write_whole_file

__all__ = ["StackFile"]

Stack = tuple[Frame, ...]


class _Group(NamedTuple):
    """The calls that have one stack."""

    number: int
    names: list[str]


class StackFile:
    """The stacks of one dump while it is written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[Stack, _Group] = {}
        # The same stack mostly comes as the same object, and its hash reads all its texts.
        self._objects: dict[int, tuple[Stack, _Group]] = {}
        # What stands in the journal already.
        self._begun: dict[str, Stack] = {}

    def begin(self, name: str, stack: Stack) -> None:
        """Note a call that begins; it counts once it is added.

        An interrupt at any moment does no harm: who is interrupted by one may just write a line
        again.

        Raises:
            OSError: it could not be written.
        """
        self._note(name, stack)
        self._begun[name] = stack

    def wait_for(self, name: str) -> None:
        """Note that a call has finished, whose values are still on their way.

        Raises:
            OSError: it could not be written.
        """
        self._journal.append(f"[{encode_basestring_ascii(name)}, null]\n".encode())

    def add(self, name: str, stack: Stack) -> None:
        """Add a call.

        Raises:
            OSError: it could not be written.
        """
        group = self._find(stack)
        if group is None or self._begun.pop(name, None) is not stack:
            group = self._note(name, stack)
        group.names.append(name)

    def publish(self) -> None:
        """Write the final file in place of the journal.

        Raises:
            OSError: it could not be written; the journal stays, and is readable.
        """
        groups = [
            f" {json.dumps(str(number))}: {json.dumps([names, [str(f) for f in stack]])}"
            for stack, (number, names) in self._groups.items()
            if names
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

    def _note(self, name: str, stack: Stack) -> _Group:
        """Write a line that says where a call is made, after one that says what that place is."""
        group = self._find(stack)
        is_new = group is None
        text = ""
        if group is None:
            group = _Group(len(self._groups), [])
            text = json.dumps([group.number, [str(frame) for frame in stack]]) + "\n"
        text += f"[{encode_basestring_ascii(name)}, {group.number}]\n"
        self._journal.append(text.encode())
        if is_new:
            self._groups[stack] = group
        return group

    def _find(self, stack: Stack) -> _Group | None:
        known = self._objects.get(id(stack))
        if known is not None and known[0] is stack:
            return known[1]
        group = self._groups.get(stack)
        if group is not None:
            self._objects[id(stack)] = (stack, group)
        return group
