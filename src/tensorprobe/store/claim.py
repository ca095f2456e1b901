"""Take a rank folder for one process, and empty it of the dump that was there.

Two processes that both believe to be rank 0, or to be no rank at all, must not write into each
other's files. Whoever comes second gets a folder named by its process id, `proc{pid}`.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from tensorprobe.store.layout import DATA_FOLDER, PART_SUFFIX

__all__ = ["Claim", "claim_folder"]

_LOCK_NAME = ".tensorprobe.lock"
_FILES = ("dump.json", "debug.json", "stack.json", "construct.json", "dump_error_info.log")
# A file system without locks: nothing can be claimed there, and a run is worth more than a lock.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


class Claim:
    """A folder that belongs to this process until `release`."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the folder up; a killed process gives it up by itself."""
        (self.folder / _LOCK_NAME).unlink(missing_ok=True)
        os.close(self._descriptor)


def claim_folder(folder: Path) -> Claim:
    """Claim a folder, or its sibling `proc{pid}` if another process holds it, and empty it.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    for candidate in (folder, folder.with_name(f"proc{os.getpid()}")):
        candidate.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(candidate / _LOCK_NAME)
        if descriptor is not None:
            _remove_old_dump(candidate)
            return Claim(candidate, descriptor)
    raise OSError(errno.EBUSY, "this folder is being written by another dump", str(folder))


def _lock(path: Path) -> int | None:
    # Imported here: reading dumps must work where there is no fcntl.
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            if err.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            if err.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        # The holder before us may have removed the file between our open and our lock.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _remove_old_dump(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
        (folder / (name + PART_SUFFIX)).unlink(missing_ok=True)
    data = folder / DATA_FOLDER
    if data.is_symlink():
        data.unlink()
    elif data.exists():
        shutil.rmtree(data)
