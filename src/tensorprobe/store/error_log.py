"""The list of what could not be recorded, kept on the disk from the first trouble on.

The trouble is often a full disk, so room for the list is taken at the start, in a hidden file that
is renamed when there is something to tell and removed when there is not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tensorprobe.store.layout import ERROR_LOG
from tensorprobe.system.new_file import make_anew

__all__ = ["ErrorLog", "read_error_log"]

_FIRST_LINE = "tensorprobe could not record:"
_ROOM = 32 << 10
# The last line says how many there were; it must always fit.
_LAST_LINE_ROOM = 100


class ErrorLog:
    """The open list of one rank folder."""

    def __init__(self, folder: Path) -> None:
        self._final = folder / ERROR_LOG
        self._hidden = folder / f".{ERROR_LOG}.{os.getpid()}"
        self._descriptor = make_anew(self._hidden)
        # Where each line ends; the last is the size.
        self._ends = [0]
        self._untold = 0
        # Where room cannot be taken in advance the list is written as far as the disk lets it.
        with contextlib.suppress(OSError):
            os.posix_fallocate(self._descriptor, 0, _ROOM)

    def add(self, problem: str) -> None:
        """Note one problem; past the room that was taken only their number is kept.

        Raises:
            OSError: not even this could be written.
        """
        line = problem.replace("\n", " ") + "\n"
        if len(self._ends) == 1:
            line = f"{_FIRST_LINE}\n{line}"
            self._hidden.replace(self._final)
        if not self._append(line, _ROOM - _LAST_LINE_ROOM):
            self._untold += 1

    def close(self) -> None:
        """Finish the list, or remove it if nothing was noted.

        Raises:
            OSError: it could not be finished; what was noted stays.
        """
        try:
            if len(self._ends) == 1:
                self._hidden.unlink(missing_ok=True)
                return
            # Where even the number does not fit, it takes the place of the last line.
            while self._untold and not self._append(f"and {self._untold} more\n", _ROOM):
                if len(self._ends) < 3:
                    break
                self._ends.pop()
                self._untold += 1
            os.ftruncate(self._descriptor, self._ends[-1])
        finally:
            os.close(self._descriptor)

    def _append(self, line: str, room: int) -> bool:
        """Write a line if all of it fits."""
        text = line.encode(errors="backslashreplace")
        end = self._ends[-1] + len(text)
        if end > room:
            return False
        try:
            written = os.pwrite(self._descriptor, text, self._ends[-1])
        except OSError:
            written = 0
        if written == len(text):
            self._ends.append(end)
        return written == len(text)


def read_error_log(text: bytes) -> list[str]:
    """Return the problems of a list that an `ErrorLog` wrote; another tool's log gives none."""
    lines = text.rstrip(b"\0").decode(errors="replace").splitlines()
    return lines[1:] if lines and lines[0] == _FIRST_LINE else []
