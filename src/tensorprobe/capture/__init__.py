"""Watch a running model: API calls, modules, gradients and saved values.

PrecisionDebugger ─► Session (one step) ─► functions, modules, gradients ─► Recorder ─► store

Names are loaded when they are first used: starting a command for `tensorprobe run` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorprobe.capture.debugger import PrecisionDebugger
    from tensorprobe.capture.inside import module_dump, module_dump_end, save
    from tensorprobe.capture.seeds import seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "save", "seed_all"]


_HOMES = {
    "PrecisionDebugger": "debugger",
    "module_dump": "inside",
    "module_dump_end": "inside",
    "save": "inside",
    "seed_all": "seeds",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tensorprobe.capture' has no attribute {name!r}")
    return getattr(import_module(f"tensorprobe.capture.{_HOMES[name]}"), name)
