"""Hand out the compiled parts of tensorprobe, each of which Python can do without.

They are built when tensorprobe is installed; without a C compiler the install goes on without them.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

__all__ = ["load_compiled"]

_SWITCH = "TENSORPROBE_NO_KERNEL"


def load_compiled(name: str, *functions: str) -> Any | None:
    """Return a compiled module; None where it is not there, is older, or was turned off.

    >>> load_compiled("tensorprobe.no_such_module") is None
    True

    Args:
        name: the module's full name.
        functions: what it must have; an editable install keeps the old file of a new source.
    """
    if os.environ.get(_SWITCH, "") not in ("", "0"):
        return None
    module = _import(name)
    is_whole = module is not None and all(hasattr(module, function) for function in functions)
    return module if is_whole else None


@cache
def _import(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
