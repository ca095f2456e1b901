"""Take a rank folder for one writer, and empty it of the dump that was there.

Two processes that both believe to be rank 0, or to be no rank at all, must not write into each
other's files. Whoever comes second gets a folder named by its process id, `proc{pid}`.

The folder that the user names may be a link. None is followed below it: a dump may lie where others
may write, too, and what they put there must not lead the writer elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import weakref
from pathlib import Path

from tensorprobe.store.layout import DATA_FOLDER, ERROR_LOG

__all__ = ["Claim", "claim_folder", "remove_if_empty", "sibling_of"]

_LOCK_NAME = ".tensorprobe.lock"
_FILES = ("dump.json", "debug.json", "stack.json", "construct.json", ERROR_LOG)
# A file system without locks: nothing can be claimed there, and a run is worth more than a lock.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget_after_fork() -> None:
    # A lock belongs to its open file, which a child shares: it would outlive a killed parent.
    for claim in list(_claims):
        claim.forget()
    _claims.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class Claim:
    """A folder that belongs to this process until `release`.

    Attributes:
        folder: which one.
        is_new: whether it was made a moment ago, so that no old dump is in it.
    """

    def __init__(self, folder: Path, descriptor: int, *, is_new: bool) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self.is_new = is_new
        _claims.add(self)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the folder up; a killed process gives it up by itself."""
        _claims.discard(self)
        lock = os.path.join(self.folder, _LOCK_NAME)
        # Removed with its folder, the name may be another writer's by now.
        if _is_at(lock, self._descriptor):
            os.unlink(lock)
        os.close(self._descriptor)

    def forget(self) -> None:
        """Let go without unlocking: after a fork the lock is the parent's alone."""
        os.close(self._descriptor)

    def remove_old_dump(self) -> None:
        """Remove the dump that was in the folder before, what names it first.

        Raises:
            OSError: something of it cannot be removed.
        """
        if not self.is_new:
            self.remove_dump()

    def remove_dump(self) -> None:
        """Remove the dump that is in the folder, what names it first.

        Raises:
            OSError: something of it cannot be removed.
        """
        for name in _FILES:
            (self.folder / name).unlink(missing_ok=True)
        data = self.folder / DATA_FOLDER
        if data.is_symlink():
            data.unlink()
        elif data.exists():
            shutil.rmtree(data)

    def take_dump_of(self, other: Claim) -> None:
        """Move the finished dump of another claimed folder here, in place of the one here.

        Raises:
            OSError: it cannot be moved, or not all of it.
        """
        self.remove_old_dump()
        for name in (DATA_FOLDER, *reversed(_FILES)):
            if (other.folder / name).exists():
                os.replace(other.folder / name, self.folder / name)


def sibling_of(folder: Path) -> Path:
    """Return the folder beside one that is this process's own."""
    return folder.with_name(f"proc{os.getpid()}")


def claim_folder(folder: Path, *, root: Path | None = None) -> Claim:
    """Claim a folder, or its sibling `proc{pid}` if another writer holds it.

    Args:
        folder: which.
        root: the folder that the user named, which `folder` is below; by default that is `folder`.

    Raises:
        OSError: the folder cannot be made or written to, or a link stands in its place.
    """
    for candidate in (folder, sibling_of(folder)):
        if root is not None:
            # Before anything is made behind one; and once more, for one that came meanwhile.
            _refuse_links(candidate, root)
        is_new = _make_folder(candidate)
        if root is not None:
            _refuse_links(candidate, root)
        descriptor = _lock(os.path.join(candidate, _LOCK_NAME))
        if descriptor is not None:
            return Claim(candidate, descriptor, is_new=is_new)
    raise OSError(errno.EBUSY, "this folder is being written by another dump", str(folder))


def remove_if_empty(folder: Path) -> None:
    """Remove a rank folder in which nothing is left, and its step folder likewise."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _make_folder(folder: Path) -> bool:
    """Make a folder and those around it; returns whether it was not there."""
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        _make_folder_around(folder)
        return _make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def _refuse_links(folder: Path, root: Path) -> None:
    for place in (folder, *folder.parents):
        if place == root:
            return
        if place.is_symlink():
            raise OSError(errno.ELOOP, f"{place} is a link, which no dump is written through")


def _make_folder_around(folder: Path) -> None:
    parent = os.path.dirname(folder)
    try:
        # Mostly the folder of the step alone is missing.
        os.mkdir(parent)
    except (FileNotFoundError, FileExistsError):
        os.makedirs(parent, exist_ok=True)


def _lock(path: str) -> int | None:
    # Imported here: reading dumps must work where there is no fcntl.
    import fcntl

    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
        except OSError as err:
            if err.errno != errno.ELOOP:
                raise
            # A link, which none of us has made.
            os.unlink(path)
            continue
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
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    """Whether a name still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
