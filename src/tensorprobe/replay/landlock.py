"""Have Linux keep a process from writing outside some folders, and from looking into others.

Landlock holds for what is opened from now on and cannot be undone. A process under it also cannot
trace one that is not: `/proc` of its parent, with all the variables there, is closed to it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["keep_writes_inside"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE, _TRUNCATE = 1 << 0, 1 << 1, 1 << 14
# To remove, and to make of every kind: files, folders, links, pipes, sockets, devices.
_CHANGE = sum(1 << bit for bit in range(4, 13))
_SIGNALS_AND_SOCKETS = 3


def keep_writes_inside(folders: Iterable[str]) -> bool:
    """Let this thread, and those that it begins, write below these folders alone.

    Returns:
        Whether this system does that.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, _ASK_VERSION)
    if version < 1:
        return False
    inside = _WRITE | _CHANGE | (_TRUNCATE if version >= 3 else 0)
    scoped = _SIGNALS_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("<QQQ", inside | _EXECUTE, 0, scoped)
    # Older kernels know the first field alone.
    size = len(attributes) if version >= 6 else 8
    rules = libc.syscall(_CREATE, attributes, size, 0)
    if rules < 0:
        return False
    try:
        for path in (*folders, os.devnull):
            with suppress(OSError):
                _allow(libc, rules, path, inside)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return bool(libc.syscall(_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        # A file that is no folder can only be written to.
        access = access if os.path.isdir(path) else access & (_WRITE | _TRUNCATE)
        libc.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("<Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)
