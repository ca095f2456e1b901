"""Hand out the compiled parts of tensorprobe, each of which Python can do without.

They are built when tensorprobe is installed; without a C compiler the install goes on without them.
`TENSORPROBE_NO_KERNEL` turns them off: all of them with 1, or the parts that it names, separated by
commas (`capture._frames,report._row_text`). A part is a C file, by its path in the package; what
cannot work without a part that is off is off, too.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

__all__ = ["PARTS", "SWITCH", "is_turned_off", "load_compiled"]

SWITCH = "TENSORPROBE_NO_KERNEL"
"""The environment variable that turns compiled parts off."""

PARTS: dict[str, str | None] = {
    "_crc32": None,
    "capture._calls": None,
    "capture._frames": "capture._calls",
    "capture._graph": "capture._calls",
    "capture._gradients": "capture._graph",
    "capture._modules": "capture._calls",
    "capture._write_pool": "capture._calls",
    "compare._plain_rows": None,
    "metrics._kernel": None,
    "report._row_text": None,
    "store._entry_text": None,
    "store._leaf_walk": None,
    "store._zip_open": None,
    "summary._launch": None,
}
"""The parts that can be turned off, each with the part without which it does nothing."""


def is_turned_off(part: str) -> bool:
    """Whether a part may not be used, or one that it needs.

    >>> is_turned_off("report._row_text")
    False
    """
    switch = os.environ.get(SWITCH, "").strip()
    if switch in ("", "0"):
        return False
    if switch == "1":
        return True
    named = {name.strip() for name in switch.split(",")}
    needed: str | None = part
    while needed is not None:
        if needed in named:
            return True
        needed = PARTS.get(needed)
    return False


def load_compiled(name: str, *functions: str, part: str | None = None) -> Any | None:
    """Return a compiled module; None where it is not there, is older, or was turned off.

    >>> load_compiled("tensorprobe.no_such_module") is None
    True

    Args:
        name: the module's full name.
        functions: what it must have; an editable install keeps the old file of a new source.
        part: which of the files in it is wanted, if not the one of its name.
    """
    if is_turned_off(part or name.removeprefix("tensorprobe.")):
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
