"""The bytes of one result file: a regular one, read in small pieces, and how far it was read."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from tensorprobe.errors import TableError

__all__ = ["TableBytes", "open_bytes"]

# `zipfile` reads the directory of a zip at once; that of a workbook has a hundred entries.
_MOST_AT_ONCE = 1 << 20


class TableBytes(io.FileIO):
    """A file that refuses to be read in one large piece, and says where it is read.

    Args:
        descriptor: of the file.
        tell: is given the place that was reached.
    """

    def __init__(self, descriptor: int, tell: Callable[[int], None] | None = None) -> None:
        super().__init__(descriptor, "rb", closefd=False)
        self._tell = tell

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes.

        Raises:
            BadZipFile: too many of them are asked for, by a number that stands in the file.
        """
        if size is None or size < 0:
            size = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        if size > _MOST_AT_ONCE:
            raise BadZipFile("its directory is larger than that of any workbook")
        self._say()
        return super().read(size) or b""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read some bytes, as many as there is room for."""
        self._say()
        return super().readinto(buffer)

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(self.tell())


@contextmanager
def open_bytes(path: Path, tell: Callable[[int], None] | None = None) -> Iterator[TableBytes]:
    """Open a result file.

    Args:
        path: the file; messages call it by its name.
        tell: is given the place that was reached.

    Raises:
        TableError: it cannot be opened or is no regular file.
    """
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as err:
        raise TableError(f"{path.name}: cannot be read: {err.strerror}; check the file") from err
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise TableError(f"{path.name}: is no regular file; put the result itself there")
        yield TableBytes(descriptor, tell)
    finally:
        os.close(descriptor)
