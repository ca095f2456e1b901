"""A file that appears under its name only when it is whole, and leaves nothing behind if not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["new_file"]

# One sequence for all threads of a process: its next() is atomic.
_HIDDEN_NUMBERS = itertools.count()
_HIDDEN_ATTEMPTS = 1000


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Give the descriptor of a hidden file that gets its name when the block ends well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with new_file(Path(folder, "a.txt")) as descriptor:
    ...         _ = os.write(descriptor, b"whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'

    Args:
        path: the final name; a file that is there is replaced.

    Raises:
        OSError: as the system gave it; no other file is left behind.
    """
    hidden, descriptor = _open_hidden(path.parent)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _open_hidden(folder: Path) -> tuple[Path, int]:
    """Create a file with a name of its own; short, as the final one may use all 255 bytes."""
    for attempt in itertools.count(1):
        hidden = folder / f".tmp-{os.getpid()}-{next(_HIDDEN_NUMBERS)}"
        try:
            # Readable too: a zip is not only appended to.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return hidden, os.open(hidden, flags, 0o666)
        except FileExistsError:
            # Left by a killed process, or made by one of the same number on another machine.
            if attempt == _HIDDEN_ATTEMPTS:
                raise
    raise AssertionError("unreachable")
