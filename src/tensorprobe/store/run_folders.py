"""Keep the steps of two runs apart that write into one dump path at the same time as the same rank.

Each step's folder is claimed by itself, and free again when the step is over: between two steps of
one run another could take its place. So a run holds the folder of its last step until it has the
next, and one that begins looks whether somebody holds any. Who finds that writes beside it, into
`proc{pid}`, from then on and in every step.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

from tensorprobe.store.claim import Claim, claim_folder, sibling_of

__all__ = ["RunFolders"]

_STEP = re.compile(r"step[0-9]{1,18}")

_all: weakref.WeakSet[RunFolders] = weakref.WeakSet()


def _forget_after_fork() -> None:
    # A lock belongs to its open file, which a child shares: it would outlive the parent.
    for folders in list(_all):
        folders.forget()


os.register_at_fork(after_in_child=_forget_after_fork)


class RunFolders:
    """The rank folders of one run below a dump path."""

    def __init__(self) -> None:
        # By the names of rank folders: whether they are another run's.
        self._is_taken: dict[str, bool] = {}
        # The last folder of each name, open and locked.
        self._held: dict[str, int] = {}
        _all.add(self)

    def claim(self, folder: Path) -> Claim:
        """Claim the folder of a rank and step, or its sibling if another run writes as that rank.

        Args:
            folder: as `rank_folder` names it.

        Raises:
            OSError: as `claim_folder`.
        """
        name = folder.name
        if name not in self._is_taken:
            self._is_taken[name] = any(map(_is_held, _steps_beside(folder)))
        wanted = sibling_of(folder) if self._is_taken[name] else folder
        claim = claim_folder(wanted, root=folder.parent.parent)
        # Whoever comes second stays second.
        self._is_taken[name] = claim.folder != folder
        if claim.folder == folder:
            self._hold(name, folder)
        return claim

    def release(self) -> None:
        """Hold nothing more, as the run is over; a killed process holds nothing either."""
        import fcntl

        for descriptor in self._held.values():
            # A child that is being forked may share the open file.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Let go without unlocking: after a fork the locks are the parent's alone."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)
        self._is_taken.clear()

    def _hold(self, name: str, folder: Path) -> None:
        # Imported here: reading dumps must work where there is no fcntl.
        import fcntl

        descriptor = _open(folder)
        if descriptor is None:
            return
        # Without locks, as on some network file systems, each step is claimed by itself alone.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before, self._held[name] = self._held.get(name), descriptor
        if before is not None:
            os.close(before)


def _steps_beside(folder: Path) -> Iterator[Path]:
    """Yield the folders of the same rank in all steps, this one among them."""
    # It need not stand in the folder of a step: ptdbg_ascend had runs without any.
    yield folder
    with contextlib.suppress(OSError):
        for step in os.listdir(folder.parent.parent):
            if _STEP.fullmatch(step):
                yield folder.parent.parent / step / folder.name


def _is_held(folder: Path) -> bool:
    import fcntl

    descriptor = _open(folder)
    if descriptor is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # No locks there.
        return False
    finally:
        os.close(descriptor)
    return False


def _open(folder: Path) -> int | None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(folder, flags)
    except OSError:
        return None
