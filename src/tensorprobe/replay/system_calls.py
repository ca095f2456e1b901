"""Have Linux refuse what a process that makes recorded calls never needs: a filter of system calls.

New processes and programs, signals to others, looks into other processes, ways out of the machine,
and the calls that would set up other ways to any of these. Threads and files go on as before. It
holds for all threads of the process and cannot be undone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

__all__ = ["refuse_system_calls"]

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000

# By machine: the name that the kernel knows it by, the number of `seccomp`, those that are refused.
_KNOWN: dict[str, tuple[int, int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        317,
        {"fork": 57, "vfork": 58, "execve": 59, "kill": 62, "socket": 41, "connect": 42,
         "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50, "ptrace": 101,
         "rt_sigqueueinfo": 129, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
         "init_module": 175, "tkill": 200, "add_key": 248, "request_key": 249, "keyctl": 250,
         "unshare": 272, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "sendmmsg": 307,
         "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
         "finit_module": 313, "bpf": 321, "execveat": 322, "userfaultfd": 323,
         "clone": 56, "tgkill": 234, "prlimit64": 302},
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {"umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "unshare": 97,
         "init_module": 105, "ptrace": 117, "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138,
         "socket": 198, "bind": 200, "listen": 201, "connect": 203, "sendto": 206, "sendmsg": 211,
         "add_key": 217, "request_key": 218, "keyctl": 219, "execve": 221,
         "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "setns": 268, "sendmmsg": 269,
         "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
         "bpf": 280, "execveat": 281, "userfaultfd": 282,
         "clone": 220, "tgkill": 131, "prlimit64": 261},
    ),
}  # fmt: skip
# Newer calls have one number on every machine.
_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440,
}  # fmt: skip

_Step = tuple[int, int, int, int]
# What a step does: load a word, or jump if the loaded one equals, is not below, has a bit.
_LOAD, _EQUALS, _NOT_BELOW, _HAS_BIT, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06
# Where the number, the machine and the first two arguments (their lower halves) stand.
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16


def refuse_system_calls() -> bool:
    """Refuse them from now on; returns whether this system does."""
    known = _KNOWN.get(platform.machine()) if sys.platform == "linux" else None
    if known is None or struct.calcsize("P") != 8:
        return False
    machine, seccomp, calls = known
    steps = _program(machine, {**calls, **_EVERYWHERE})
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    head = struct.pack("<H6xQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.syscall(seccomp, _SET_MODE_FILTER, _ALL_THREADS, head) == 0)


def _program(machine: int, calls: dict[str, int]) -> list[_Step]:
    """Return the filter: steps of (what to do, jump if so, jump if not, number)."""
    refuse = (_GIVE, 0, 0, _REFUSE | errno.EPERM)
    allow = (_GIVE, 0, 0, _ALLOW)
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE),
        # Calls of another machine's kind have other numbers.
        (_EQUALS, 1, 0, machine),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
        # x86-64 has a second set of numbers, for programs of 32-bit pointers.
        (_NOT_BELOW, 0, 1, _X32),
        refuse,
    ]
    # A thread of its own, itself, and this very process are what they may be about.
    allowed_if = {
        "clone": (_HAS_BIT, 0, 1, _CLONE_THREAD),
        "tgkill": (_EQUALS, 0, 1, os.getpid()),
        "prlimit64": (_EQUALS, 0, 1, 0),
    }
    for name, number in calls.items():
        if name in allowed_if:
            asks = (_LOAD, 0, 0, _FIRST_ARGUMENT)
            steps += [(_EQUALS, 0, 4, number), asks, allowed_if[name], allow, refuse]
        elif name == "clone3":
            # As a kernel that has no such call: the library then asks in the older way, whose
            # flags can be looked at.
            steps += [(_EQUALS, 0, 1, number), (_GIVE, 0, 0, _REFUSE | errno.ENOSYS)]
        else:
            steps += [(_EQUALS, 0, 1, number), refuse]
    return [*steps, allow]
