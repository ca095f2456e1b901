"""Where in the code a call is made: the line that makes it, and the user's own line above that.

A stack holds frames of four kinds. Those of torch and of the tools that record say how a call came
about; those of Python's own library say nothing; those of an installed package are where the call
stands; the others are the user's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import PurePosixPath

from tensorprobe.records import Frame

__all__ = ["find_places", "short_path"]

_PACKAGES = ("site-packages", "dist-packages")
_TORCH = frozenset(("torch", "torch_npu"))
# What lies in torch's own folder, where that is not among the installed packages.
_IN_TORCH = frozenset(
    (
        "_compile.py",
        "_dynamo",
        "_inductor",
        "_jit_internal.py",
        "_ops.py",
        "_prims_common",
        "_refs",
        "_tensor.py",
        "amp",
        "autograd",
        "distributed",
        "fft",
        "functional.py",
        "fx",
        "jit",
        "library.py",
        "linalg",
        "nn",
        "npu",
        "optim",
        "overrides.py",
        "utils",
    )
)
# Tools that record, and the folders of theirs that stand between a user's call and its record.
_TOOLS = frozenset(("api_accuracy_checker", "atat", "msprobe", "ptdbg_ascend", "tensorprobe"))
_IN_TOOLS = frozenset(
    (
        "api_accuracy_checker",
        "capture",
        "common",
        "core",
        "debugger",
        "dump",
        "hook_module",
        "overflow_check",
        "pytorch",
        "src",
    )
)


def find_places(frames: Sequence[Frame]) -> tuple[Frame | None, Frame | None]:
    """Return the line that makes a call, and the user's own line that led there.

    Args:
        frames: the call's stack, innermost first.

    Returns:
        The innermost frame that is not torch's or a tool's, and the innermost one of the user's own
        code where that is another one; None where there is none.

    >>> inside = Frame("/v/site-packages/transformers/activations.py", 103, "forward", "silu(x)")
    >>> script = Frame("train.py", 9, "<module>", "model(x)")
    >>> find_places([inside, script]) == (inside, script)
    True
    >>> find_places([script]) == (script, None)
    True
    """
    written = [frame for frame in frames if not _is_passed_through(frame)]
    if not written:
        # Better torch's own line than none.
        return (frames[0] if frames else None), None
    own = next((frame for frame in written if not _is_installed(frame)), None)
    return written[0], None if own is written[0] else own


def short_path(path: str) -> str:
    """Return the path of a file as people know it: that of a package from the package on.

    >>> short_path("/v/lib/python3.11/site-packages/transformers/activations.py")
    'transformers/activations.py'
    """
    for packages in _PACKAGES:
        _, is_inside, rest = path.rpartition(f"{packages}/")
        if is_inside:
            return rest
    return path


def _is_passed_through(frame: Frame) -> bool:
    """Whether a frame is torch's, a tool's or one of Python's own library."""
    if frame.path.startswith("<frozen "):
        return True
    parts = _parts(frame)
    for number, (part, inside) in enumerate(itertools.pairwise(parts)):
        before = parts[number - 1] if number else ""
        if part in _TORCH and (before in _PACKAGES or inside in _IN_TORCH):
            return True
        if part in _TOOLS and (before in _PACKAGES or inside in _IN_TOOLS):
            return True
        if part == "lib" and inside.startswith("python3") and not _is_installed(frame):
            return True
    return False


def _is_installed(frame: Frame) -> bool:
    return any(part in _PACKAGES for part in _parts(frame))


def _parts(frame: Frame) -> tuple[str, ...]:
    return PurePosixPath(frame.path.replace("\\", "/")).parts
