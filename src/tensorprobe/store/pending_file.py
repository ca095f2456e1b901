"""The file of one tensor between the moment it is promised and the moment it is on the disk.

    promised ─► its bytes, whole or in parts, from any thread ─► renamed into place ─► its links

What goes wrong is told to `lose` and never raised: the file is then done without a name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from errno import ENOENT

from tensorprobe.new_file import HiddenFile, remove_hidden
from tensorprobe.store.tensor_bytes import Piece, write_at, write_whole_file

__all__ = ["Lose", "PendingFile"]

Lose = Callable[[str, Exception | None], object]
"""Told in words what is lost, and the error if there was one."""


class PendingFile:
    """A tensor's file that is on its way to the disk.

    Args:
        name: the value's name, for messages.
        folder: where the file goes.
        data_name: what it will be called there.
        suffix: what that ends with.
        frame: the bytes before and after the tensor's own.
        lose: told when it cannot be written.

    Attributes:
        is_done: whether nothing more will happen to it.
        data_name: the file's name; None until it is there, and for good if it is lost.
        suffix: the ending of that name.
    """

    __slots__ = (
        "_error",
        "_folder",
        "_followers",
        "_frame",
        "_hidden",
        "_lock",
        "_lose",
        "_name",
        "_parts_left",
        "_path",
        "_promised_name",
        "data_name",
        "is_done",
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
        self._path = f"{folder}/{data_name}"
        self._frame = frame
        self._lose = lose
        self._lock = threading.Lock()
        self._followers: list[PendingFile] = []
        self._hidden: HiddenFile | None = None
        self._parts_left = 0
        self._error: Exception | None = None
        self.is_done = False
        self.data_name: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it is known that the file will not be there."""
        return self.is_done and self.data_name is None

    def write(self, content: Piece) -> None:
        """Write the whole file now."""
        header, trailer = self._frame
        pieces = [header, content, trailer]
        try:
            try:
                write_whole_file(self._path, pieces)
            except FileNotFoundError:
                # The first of its folder.
                os.makedirs(self._folder, exist_ok=True)
                write_whole_file(self._path, pieces)
        except OSError as err:
            self._end(err)
        else:
            self._end(None)

    @property
    def frame(self) -> tuple[bytes, bytes]:
        """What stands before and after the tensor's bytes."""
        return self._frame

    def open_hidden(self) -> HiddenFile:
        """Return a file of the same folder that is open, to be written and given to `take`.

        Raises:
            OSError: it cannot be made.
        """
        hidden = HiddenFile(self._folder)
        try:
            hidden.open()
        except FileNotFoundError:
            # The first of its folder.
            os.makedirs(self._folder, exist_ok=True)
            hidden.open()
        return hidden

    def remove_hidden(self) -> None:
        """Remove files of its folder that this process has opened, and not named."""
        remove_hidden(self._folder)

    def take(self, hidden: HiddenFile, error: int) -> bool:
        """Take a file that somebody has written; returns whether it is whole and wants its name.

        Args:
            hidden: the file, of which the caller knows nothing more.
            error: the number of the system's error, 0 without any.
        """
        self._hidden = hidden
        try:
            if error:
                raise OSError(error, os.strerror(error))
            hidden.close()
        except OSError as err:
            self.fail(err)
            return False
        return True

    def naming(self, source: PendingFile | None) -> tuple[bool, str, str]:
        """Return how it gets its name: whether it is a second one, from what, to what.

        Args:
            source: whose second name it is; None for one that was taken.
        """
        if source is not None:
            return True, source._path, self._path
        hidden = self._hidden
        # It may have its name already, from somebody who could not wait.
        return False, self._path if hidden is None else hidden.hidden, self._path

    def end_naming(self, source: PendingFile | None, error: int) -> None:
        """Say that somebody did what `naming` told; `error` as for `take`."""
        # It may have its name already, from somebody who could not wait.
        if not error or (source is None and error == ENOENT and os.path.exists(self._path)):
            self._hidden = None
            self._end(None)
        elif source is not None:
            # No hard links here, or it is the first that is missing.
            self.follow(source)
        else:
            self.fail(OSError(error, os.strerror(error)))

    def expect_parts(self, count: int) -> None:
        """Say how many parts will come; the last of them, in time, completes the file."""
        self._parts_left = count

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
        header, trailer = self._frame
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
        with self._lock:
            self._parts_left -= 1
            if self._parts_left:
                return
        self._complete()

    def follow(self, source: PendingFile) -> None:
        """Become a second name of another file, now or when that is on the disk."""
        with source._lock:
            if not source.is_done:
                source._followers.append(self)
                return
        self._link(source)

    def link_to(self, source: str) -> None:
        """Become a second name of a file that is on the disk."""
        try:
            try:
                os.link(source, self._path)
            except OSError:
                # No hard links here, or too many to one file: then a copy.
                with open(source, "rb") as file:
                    write_whole_file(self._path, [file.read()])
        except OSError as err:
            self._end(err)
        else:
            self._end(None)

    def fail(self, err: Exception) -> None:
        """Give the file up."""
        self._error = err
        self._complete()

    def _open(self) -> HiddenFile:
        with self._lock:
            if self._hidden is None:
                self._hidden = self.open_hidden()
            return self._hidden

    def _complete(self) -> None:
        hidden, self._hidden = self._hidden, None
        try:
            if hidden is not None and self._error is None:
                hidden.publish(self._path)
            elif hidden is not None:
                hidden.discard()
        except OSError as err:
            self._error = self._error or err
        self._end(self._error)

    def _link(self, source: PendingFile) -> None:
        if source._error is not None:
            self._end(source._error)
        else:
            self.link_to(source._path)

    def _end(self, err: Exception | None) -> None:
        if err is not None:
            self._lose(f"the data of {self._name}", err)
        with self._lock:
            self._error = err
            self.data_name = self._promised_name if err is None else None
            self.is_done = True
            followers, self._followers = self._followers, []
        for follower in followers:
            follower._link(self)
