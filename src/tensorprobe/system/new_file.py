"""Files that are new: one that appears only when it is whole, one in the place of what was there.

Neither goes through a link: what stands under a name is replaced, and where a link led is not
touched. A folder may be shared, and anybody who may write into it may leave a link there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["HiddenFile", "make_anew", "new_file"]

# One sequence for all threads of a process: its next() is atomic.
_HIDDEN_NUMBERS = itertools.count()
_HIDDEN_ATTEMPTS = 1000
_REPLACING_ATTEMPTS = 10


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[int]:
    """Give the descriptor of a hidden file that gets its name when the block ends well.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with new_file(f"{folder}/a.txt") as descriptor:
    ...         _ = os.write(descriptor, b"whole")
    ...     pathlib.Path(folder, "a.txt").read_text()
    'whole'

    Args:
        path: the final name; a file that is there is replaced.

    Raises:
        OSError: as the system gave it; no other file is left behind.
    """
    hidden = HiddenFile(os.path.dirname(path))
    try:
        yield hidden.open()
        hidden.publish(path)
    except BaseException:
        hidden.discard()
        raise


def make_anew(path: str | os.PathLike[str]) -> int:
    """Make an empty file in the place of whatever is there; returns its descriptor.

    Raises:
        OSError: it cannot be made, or somebody makes one in its place again and again.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(_REPLACING_ATTEMPTS):
        try:
            return os.open(path, flags, 0o666)
        except FileExistsError:
            # Also a link, and a second name of a file that is somebody else's.
            with suppress(FileNotFoundError):
                os.unlink(path)
    return os.open(path, flags, 0o666)


class HiddenFile:
    """A file that nobody sees until it is whole.

    Args:
        folder: where it will stand.

    Attributes:
        descriptor: open for reading and writing, after `open`.
        hidden: the name that it has meanwhile; blank before.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.hidden = ""
        self.descriptor = -1

    def open(self) -> int:
        """Make the file; returns its descriptor.

        Raises:
            OSError: it cannot be made.
        """
        for attempt in itertools.count(1):
            # Short, as the final one may use all 255 bytes. Not by pathlib: a step has hundreds of
            # files, and this is as much work as a small one.
            name = f".tmp-{os.getpid()}-{next(_HIDDEN_NUMBERS)}"
            # Known before the file is there: an interrupt may come as soon as it is.
            self.hidden = f"{self._folder}/{name}" if self._folder else name
            try:
                # Readable too: a zip is not only appended to.
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self.descriptor = os.open(self.hidden, flags, 0o666)
                return self.descriptor
            except OSError as err:
                # Left by a killed process, or made by one of the same number on another machine.
                self.hidden = ""
                if not isinstance(err, FileExistsError) or attempt == _HIDDEN_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def publish(self, path: str | os.PathLike[str]) -> None:
        """Give the file its name.

        Raises:
            OSError: as the system gave it; the file is gone then.
        """
        try:
            self.close()
            os.replace(self.hidden, path)
        except BaseException:
            self.discard()
            raise

    def close(self) -> None:
        """Close what is written; somebody gives it its name.

        Raises:
            OSError: as the system gave it.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor != -1:
            # Whatever close says, the descriptor is gone and may be somebody else's next.
            os.close(descriptor)

    def discard(self) -> None:
        """Remove what was written."""
        try:
            self.close()
        finally:
            hidden, self.hidden = self.hidden, ""
            if hidden:
                with suppress(FileNotFoundError):
                    os.unlink(hidden)
