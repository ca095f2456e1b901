"""A text file that grows with the run and takes its final name when it is whole.

Every append is one write to the operating system, so a killed process loses at most the text that
it was writing. A write that fails half-way is taken back, so that the next one starts clean. The
system knows where the file ends: whatever interrupts the process, the next text stands behind the
last.
"""

from __future__ import annotations

import errno
import os
from json.encoder import encode_basestring_ascii

from tensorprobe.store.layout import PART_SUFFIX
from tensorprobe.store.tensor_bytes import write_at
from tensorprobe.system.new_file import make_anew, new_file

__all__ = ["Journal"]

_COPY_BYTES = 1 << 22
_SEARCHED_AT_ONCE = 1 << 20
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
        text = self._beginning + text
        written = 0
        try:
            while written < len(text):
                written += os.write(self._descriptor, text[written:])
        except OSError:
            size = os.lseek(self._descriptor, 0, os.SEEK_CUR) - written
            os.ftruncate(self._descriptor, size)
            os.lseek(self._descriptor, size, os.SEEK_SET)
            raise
        self._beginning = b""

    def blank(self, text: bytes) -> bool:
        """Put blanks in the place of the last such text that was written; returns whether one was.

        That takes no room, which a disk may have none of.

        Raises:
            OSError: it could not be written.
        """
        if self._descriptor < 0:
            return False
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        after = b""
        while end > 0:
            start = max(0, end - _SEARCHED_AT_ONCE)
            piece = os.pread(self._descriptor, end - start, start) + after
            place = piece.rfind(text)
            if place >= 0:
                os.pwrite(self._descriptor, b" " * len(text), start + place)
                return True
            after = piece[: len(text) - 1]
            end = start
        return False

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
            return
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
        try:
            self._descriptor = make_anew(self._part)
        except FileNotFoundError:
            # The folder was removed since it was claimed.
            os.makedirs(os.path.dirname(self._part), exist_ok=True)
            self._descriptor = make_anew(self._part)

    def _is_in_place(self) -> bool:
        """Whether the name still leads to our file, and not to another writer's."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._part))
        except FileNotFoundError:
            return False

    def _copy_out(self) -> None:
        """Write the final file from what the descriptor holds."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with new_file(self.path) as copy:
            start = 0
            while piece := os.pread(self._descriptor, _COPY_BYTES, start):
                write_at(copy, start, piece)
                start += len(piece)
