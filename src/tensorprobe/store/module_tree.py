"""Write construct.json: the module call around each call.

Calls that are not recorded stand there, too. Their places come in great numbers while nothing is
recorded, and so some are written at a time, at the latest with the next record.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii

from tensorprobe.store.journal import Journal

__all__ = ["ModuleTree"]

_TOGETHER = 32


class ModuleTree:
    """The module calls around the calls of one dump while it is written.

    Attributes:
        journal: where they go; until there is one, places wait.
    """

    def __init__(self) -> None:
        self.journal: Journal | None = None
        self._names: set[str] = set()
        self._waiting: list[tuple[str, str | None]] = []

    def __len__(self) -> int:
        return len(self._names) + len(self._waiting)

    def put(self, name: str, parent: str | None) -> bool:
        """Add a call with one of the next; returns whether so many wait that they should go."""
        self._waiting.append((name, parent))
        return len(self._waiting) >= _TOGETHER

    def write_waiting(self) -> list[tuple[str, OSError]]:
        """Write what waits, in one piece; returns what could not be written, and why."""
        journal = self.journal
        if journal is None or not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        is_alone = not journal.is_holding
        if is_alone:
            journal.hold()
        for name, parent in waiting:
            self.add(name, parent)
        return journal.release() if is_alone else []

    def add(self, name: str, parent: str | None) -> None:
        """Add a call, unless it is there.

        Raises:
            OSError: it could not be written.
        """
        if self.journal is None or name in self._names:
            return
        shown = "null" if parent is None else encode_basestring_ascii(parent)
        self.journal.append_entry(name, shown, indent=1)
        self._names.add(name)

    def publish(self) -> list[tuple[str, OSError]]:
        """Give the file its final name; returns what could not be written before, and why.

        Raises:
            OSError: it could not be finished; the journal stays, and is readable.
        """
        lost = self.write_waiting()
        if self.journal is not None:
            self.journal.append(b"\n}" if self.journal.has_entries else b"}")
            self.journal.publish()
        return lost
