"""The file of one tensor between the moment it is promised and the moment it is on the disk.

    promised ─► its bytes, whole or in parts, from any thread ─► renamed into place ─► its links

What goes wrong is told to `lose` and never raised: the file is then done without a name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tensorprobe.store.tensor_bytes import Piece, write_at, write_whole_file
from tensorprobe.system.new_file import HiddenFile

__all__ = ["Lose", "PendingFile"]

Lose = Callable[[str, str, Exception | None], object]
"""Told whose data are lost: a value's name, its file's, and the error; None: that name is taken."""


class PendingFile:
    """A tensor's file that is on its way to the disk.

    Args:
        name: the value's name, for messages.
        folder: where the file goes.
        data_name: what it will be called there.
        suffix: what that ends with.
        frame: the `frame`.
        lose: told when it cannot be written.

    Attributes:
        is_done: whether nothing more will happen to it.
        data_name: the file's name, for the record of its value; None once it is lost.
        path: where the file will be.
        suffix: the ending of that name.
        frame: the bytes before and after the tensor's own.
    """

    __slots__ = (
        "_error",
        "_folder",
        "_followers",
        "_hidden",
        "_lock",
        "_lose",
        "_name",
        "_parts_left",
        "_promised_name",
        "data_name",
        "frame",
        "is_done",
        "path",
        "suffix",
    )

    def __init__(
        self,
        name: str,
        folder: str,
        data_name: str,
        suffix: str,
        frame: tuple[bytes, bytes],
        lose: Lose,
    ) -> None:
        self._name = name
        self._folder = folder
        self._promised_name = data_name
        self.suffix = suffix
        self.path = f"{folder}/{data_name}"
        self.frame = frame
        self._lose = lose
        # Of what comes in parts.
        self._lock: threading.Lock | None = None
        self._followers: list[PendingFile] = []
        self._hidden: HiddenFile | None = None
        self._parts_left = 0
        self._error: Exception | None = None
        self.is_done = False
        self.data_name: str | None = data_name

    @property
    def is_lost(self) -> bool:
        """Whether it is known that the file will not be there."""
        return self.is_done and self.data_name is None

    def write(self, content: Piece) -> None:
        """Write the whole file now."""
        header, trailer = self.frame
        pieces = [header, content, trailer]
        try:
            try:
                write_whole_file(self.path, pieces)
            except FileNotFoundError:
                # The first of its folder.
                os.makedirs(self._folder, exist_ok=True)
                write_whole_file(self.path, pieces)
        except OSError as err:
            self._end(err)
        else:
            self._end(None)

    def end(self) -> None:
        """Say that somebody has written it to its path, or made that another one's second name."""
        self._end(None)

    def expect_parts(self, count: int) -> None:
        """Say how many parts will come; the last of them, in time, completes the file."""
        self._parts_left = count
        self._lock = threading.Lock()

    def write_part(
        self, offset: int, content: Piece, *, is_last: bool, wait: Callable[[], None]
    ) -> None:
        """Write some of the tensor's bytes; once for each of the expected parts.

        Args:
            offset: where they stand among the tensor's bytes.
            content: the bytes, right once `wait` has returned.
            is_last: whether the tensor ends with them.
            wait: returns when the bytes have arrived.
        """
        header, trailer = self.frame
        try:
            wait()
            if self._error is None:
                hidden = self._open()
                if not offset:
                    write_at(hidden.descriptor, 0, header)
                offset += len(header)
                write_at(hidden.descriptor, offset, content)
                if is_last:
                    write_at(hidden.descriptor, offset + len(content), trailer)
        except Exception as err:  # noqa: BLE001 - told to `lose` once all parts have come
            self._error = err
        assert self._lock is not None, "parts are expected"
        with self._lock:
            self._parts_left -= 1
            if self._parts_left:
                return
        self._complete()

    def follow(self, source: PendingFile) -> None:
        """Become a second name of another file, now or when that is on the disk."""
        # Its end may come in another thread at any moment: who takes it out of the list links it.
        source._followers.append(self)
        if source.is_done:
            source._link_followers()

    def link_to(self, source: str) -> None:
        """Become a second name of a file that is on the disk."""
        try:
            try:
                os.link(source, self.path)
            except OSError:
                # No hard links here, or too many to one file: then a copy.
                with open(source, "rb") as file:
                    write_whole_file(self.path, [file.read()])
        except OSError as err:
            self._end(err)
        else:
            self._end(None)

    def fail(self, err: Exception) -> None:
        """Give the file up."""
        self._error = err
        self._complete()

    def _open(self) -> HiddenFile:
        assert self._lock is not None, "parts are expected"
        with self._lock:
            if self._hidden is None:
                hidden = HiddenFile(self._folder)
                try:
                    hidden.open()
                except FileNotFoundError:
                    # The first of its folder.
                    os.makedirs(self._folder, exist_ok=True)
                    hidden.open()
                self._hidden = hidden
            return self._hidden

    def _complete(self) -> None:
        hidden, self._hidden = self._hidden, None
        try:
            if hidden is not None and self._error is None:
                hidden.publish(self.path)
            elif hidden is not None:
                hidden.discard()
        except OSError as err:
            self._error = self._error or err
        self._end(self._error)

    def _link(self, source: PendingFile) -> None:
        if source._error is not None:
            self._end(source._error)
        else:
            self.link_to(source.path)

    def _end(self, err: Exception | None) -> None:
        self._error = err
        if err is not None:
            # First: who writes the record meanwhile either leaves the name out or is done with it.
            self.data_name = None
            self._lose(self._name, self._promised_name, err)
        self.is_done = True
        self._link_followers()

    def _link_followers(self) -> None:
        while self._followers:
            try:
                follower = self._followers.pop(0)
            except IndexError:
                return  # another thread was faster
            follower._link(self)
