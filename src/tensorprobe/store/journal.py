"""A text file that grows with the run and takes its final name when it is whole.

Every append is one write to the operating system, so a killed process loses at most the text that
it was writing. A write that fails half-way is taken back, so that the next one starts clean.
"""

from __future__ import annotations

import errno
import os
from json.encoder import encode_basestring_ascii

from tensorprobe.store.layout import PART_SUFFIX

__all__ = ["Journal"]

_COPY_BYTES = 1 << 22
# In the place of a descriptor.
_CLOSED = -2


class Journal:
    """One growing file.

    Args:
        path: the final name; until `publish` the file is called that plus `.part`.
        beginning: what stands before the first text.
        is_lazy: whether the file is made when the first text comes; nothing may stand in its place.

    Raises:
        OSError: the file cannot be made.
    """

    # Not by pathlib, which would take as long as the system does to make the file.
    def __init__(self, path: str, *, beginning: bytes = b"", is_lazy: bool = False) -> None:
        self.path = path
        self._part = path + PART_SUFFIX
        self.has_entries = False
        self._beginning = beginning
        self._size = 0
        # What waits for `release`: an entry with its key, or plain text.
        self._held: list[tuple[str, bytes]] | None = None
        self._descriptor = -1
        if not is_lazy:
            self._open()

    def append(self, text: bytes) -> None:
        """Add text at the end, all of it or nothing.

        Raises:
            OSError: it could not be written.
        """
        if self._held is not None:
            self._held.append(("", text))
            return
        if self._descriptor == _CLOSED:
            raise OSError(errno.EBADF, "it is closed", self._part)
        if self._descriptor < 0:
            self._open()
        if not self._size:
            text = self._beginning + text
        written = 0
        try:
            while written < len(text):
                written += os.pwrite(self._descriptor, text[written:], self._size + written)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += written

    def append_entry(self, key: str, text: str, *, indent: int) -> None:
        """Add one entry of a JSON object on a line of its own.

        Raises:
            OSError: it could not be written.
        """
        entry = f"\n{' ' * indent}{encode_basestring_ascii(key)}: {text}".encode()
        if self._held is not None:
            self._held.append((key, entry))
            return
        self.append(b"," + entry if self.has_entries else entry)
        self.has_entries = True

    @property
    def is_holding(self) -> bool:
        """Whether what is added waits for `release`."""
        return self._held is not None

    def hold(self) -> None:
        """Keep what is added until `release` writes it in one piece."""
        self._held = []

    def release(self) -> list[tuple[str, OSError]]:
        """Write what was held; returns the keys of entries that could not be written, and why."""
        held, self._held = self._held or [], None
        pieces = []
        has_entries = self.has_entries
        for key, text in held:
            pieces.append(b"," + text if key and has_entries else text)
            has_entries = has_entries or bool(key)
        try:
            self.append(b"".join(pieces))
        except OSError:
            # A part of it may still find its place.
            return self._write_each(held)
        self.has_entries = has_entries
        return []

    def _write_each(self, held: list[tuple[str, bytes]]) -> list[tuple[str, OSError]]:
        lost = []
        for key, text in held:
            try:
                self.append(b"," + text if key and self.has_entries else text)
            except OSError as err:
                lost.append((key, err))
            else:
                self.has_entries = self.has_entries or bool(key)
        return lost

    def publish(self) -> None:
        """Give the file its final name.

        Raises:
            OSError: it could not be renamed; the journal stays, and is readable.
        """
        if not self._is_in_place():
            # The folder was removed under us; what we wrote is still there behind the descriptor.
            self._copy_out()
        os.replace(self._part, self.path)

    def close(self) -> None:
        """Close the file, published or not; once."""
        # Its number may be another file's by the next time.
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor >= 0:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the unpublished file."""
        if self._descriptor >= 0 and self._is_in_place():
            os.unlink(self._part)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._part, flags, 0o666)
        except FileNotFoundError:
            # The folder was removed since it was claimed.
            os.makedirs(os.path.dirname(self._part), exist_ok=True)
            self._descriptor = os.open(self._part, flags, 0o666)

    def _is_in_place(self) -> bool:
        """Whether the name still leads to our file, and not to another writer's."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._part))
        except FileNotFoundError:
            return False

    def _copy_out(self) -> None:
        folder, name = os.path.split(self.path)
        os.makedirs(folder, exist_ok=True)
        self._part = os.path.join(folder, f".{name}.{os.getpid()}{PART_SUFFIX}")
        with open(self._part, "wb") as copy:
            for start in range(0, self._size, _COPY_BYTES):
                copy.write(os.pread(self._descriptor, _COPY_BYTES, start))
