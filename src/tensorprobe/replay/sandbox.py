"""What a process that makes recorded calls may touch: the line behind the list of functions.

    parent: an environment without secrets, an empty folder ─► worker: limits, no new programs

Everything here holds for the rest of the process and cannot be undone by it. What a system does not
offer is left out: the list of functions does not depend on it.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import re
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["clean_environment", "confine"]

# What Python, the loader, torch and the drivers of devices read.
_NEEDED = re.compile(
    r"""(?x)
    PATH | HOME | LANG | LANGUAGE | TZ | TMPDIR | TEMP | TMP | USER | LOGNAME | SYSTEMROOT
    | (?: LC | LD | DYLD | PYTHON | VIRTUAL | CONDA | OMP | GOMP | KMP | MKL | OPENBLAS | BLIS
        | ONEDNN | DNNL | OPENCL | TORCH | PYTORCH | ATEN | CUDA | CUBLAS | CUDNN | NVIDIA | NCCL
        | HIP | HSA | ROCM | ROCR | MIOPEN | ASCEND | NPU | HCCL | ACL | ATB | TE | SYCL | ONEAPI
        | ZE | XPU | HABANA | TRITON | THP | MALLOC | TENSORPROBE | COV | COVERAGE
      )_? \w*
    """
)
_SECRET = re.compile(
    r"(?i)TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|(^|_)(API|ACCESS|PRIVATE)?_?KEY($|_)|"
    r"(^|_)AUTH($|_)|PROXY|://[^/\s]*@"
)
_LEAST_FILE = 1 << 24


def clean_environment(environment: Mapping[str, str], *, keeps_others: bool) -> dict[str, str]:
    """Return the variables that a worker gets.

    >>> clean_environment({"OMP_NUM_THREADS": "2", "DB": "x", "HF_TOKEN": "y"}, keeps_others=False)
    {'OMP_NUM_THREADS': '2'}

    Args:
        environment: this process's own.
        keeps_others: whether code of the user's own runs there, which may need variables that
            nobody here knows; what looks like a secret is left out all the same.
    """
    return {
        name: value
        for name, value in environment.items()
        if (keeps_others or _NEEDED.fullmatch(name))
        and not _SECRET.search(name)
        and not _SECRET.search(value if "@" in value else "")
    }


def confine(*, memory: int, writes_files: bool, may_start_programs: bool) -> None:
    """Limit this process for good.

    Args:
        memory: how many bytes it may take.
        writes_files: whether it keeps tensors of calls; what it prints goes into a file, too.
        may_start_programs: whether it may make other processes: drivers and compilers of some
            devices do, and so may code of the user's own.
    """
    with suppress(ImportError):
        import resource

        # Of the space that a process reserves, devices take far more than they use: only what it
        # may write to counts.
        for kind, most in (
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_FSIZE, memory if writes_files else _LEAST_FILE),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # Some systems know a limit and do not let it be set.
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, limit))
    if not may_start_programs and sys.platform == "linux":
        _forbid_programs()


# --- no new programs (Linux) ---------------------------------------------------------------------

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_FILTER = 2
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_CLONE_THREAD = 0x00010000
# By machine: the name that the kernel knows it by, then the numbers of the calls that make a
# process, replace this one, signal or look into another, or open a way out.
_SYSTEM_CALLS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
         "kill": 62, "ptrace": 101, "process_vm_writev": 311, "connect": 42, "bind": 49,
         "sendto": 44, "sendmsg": 46, "sendmmsg": 307},
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435, "execve": 221, "execveat": 281, "kill": 129, "ptrace": 117,
         "process_vm_writev": 271, "connect": 203, "bind": 200, "sendto": 206,
         "sendmsg": 211, "sendmmsg": 269},
    ),
}  # fmt: skip


def _forbid_programs() -> None:
    """Have the kernel refuse new processes, programs and connections; threads go on as before."""
    known = _SYSTEM_CALLS.get(platform.machine())
    if known is None or struct.calcsize("P") != 8:
        return
    program = _program(*known)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))
    head = struct.pack("<H6xQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        libc.prctl(_PR_SET_SECCOMP, _FILTER, head, 0, 0)


def _program(machine: int, calls: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """Return the filter: steps of (what to do, jump if so, jump if not, number)."""
    load, equals, bits, give = 0x20, 0x15, 0x45, 0x06
    refuse = (give, 0, 0, _REFUSE | errno.EPERM)
    steps = [
        (load, 0, 0, 4),
        # Calls of another machine's kind have other numbers.
        (equals, 1, 0, machine),
        refuse,
        (load, 0, 0, 0),
    ]
    for name, number in calls.items():
        if name == "clone3":
            # As a kernel that has no such call: the library then asks in the older way, whose
            # flags can be looked at here.
            steps += [(equals, 0, 1, number), (give, 0, 0, _REFUSE | errno.ENOSYS)]
        elif name == "clone":
            steps += [
                (equals, 0, 4, number),
                (load, 0, 0, 16),
                (bits, 0, 1, _CLONE_THREAD),
                (give, 0, 0, _ALLOW),
                refuse,
            ]
        else:
            steps += [(equals, 0, 1, number), refuse]
    # x86-64 has a second set of numbers, for programs of 32-bit pointers.
    return [*steps, (0x35, 0, 1, 0x40000000), refuse, (give, 0, 0, _ALLOW)]
