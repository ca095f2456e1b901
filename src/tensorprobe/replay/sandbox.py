"""What a process that makes recorded calls may touch: the line behind the list of functions.

    parent: an environment without secrets, an empty folder ─► worker: limits, and on Linux
                                      landlock: no writes elsewhere ─┴─ system_calls: no programs

Everything here holds for the rest of the process and cannot be undone by it. What a system does not
offer is left out: the list of functions does not depend on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress

from tensorprobe.replay.landlock import keep_writes_inside
from tensorprobe.replay.system_calls import refuse_system_calls

__all__ = ["clean_environment", "confine"]

# What Python, the loader, torch and the drivers of devices read.
_NEEDED = re.compile(
    r"""(?x)
    PATH | HOME | LANG | LANGUAGE | TZ | TMPDIR | TEMP | TMP | USER | LOGNAME | SYSTEMROOT
    | (?: LC | LD | DYLD | PYTHON | VIRTUAL | CONDA | OMP | GOMP | KMP | MKL | OPENBLAS | BLIS
        | ONEDNN | DNNL | OPENCL | TORCH | PYTORCH | ATEN | CUDA | CUBLAS | CUDNN | NVIDIA | NCCL
        | HIP | HSA | ROCM | ROCR | MIOPEN | ASCEND | NPU | HCCL | ACL | ATB | TE | SYCL | ONEAPI
        | ZE | XPU | HABANA | TRITON | THP | MALLOC | TENSORPROBE | COV | COVERAGE
      )_\w*
    | PYTHON[A-Z0-9]+
    """
)
_SECRET = re.compile(
    r"""(?ix)
    TOKEN | SECRET | PASSW | PASSPHRASE | CREDENTIAL | COOKIE | SESSION | LOGIN | PROXY
    | CONNECTION_STRING | ://[^/\s]*@
    | (?: ^|_ ) (?: (?: API|ACCESS|PRIVATE )?_?KEY | AUTH | PASS | PWD | PAT | SAS | DSN ) (?: $|_ )
    | SSHPASS
    """
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


def confine(*, memory: int, writes_to: str | None, is_closed: bool) -> None:
    """Limit this process for good.

    Args:
        memory: how many bytes it may take.
        writes_to: the folder where it keeps tensors of calls; None: it keeps none. What it prints
            goes into a file, too.
        is_closed: whether to refuse programs, signals, connections and writes elsewhere, where the
            system can. Drivers and compilers of devices need them, and code of the user's own may.
    """
    with suppress(ImportError):
        import resource

        # Of the space that a process reserves, devices take far more than they use: only what it
        # may write to counts.
        for kind, most in (
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_FSIZE, _LEAST_FILE if writes_to is None else memory),
            (resource.RLIMIT_CORE, 0),
        ):
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # Some systems know a limit and do not let it be set.
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, limit))
    if is_closed:
        keep_writes_inside(filter(None, (os.getcwd(), writes_to)))
        refuse_system_calls()
