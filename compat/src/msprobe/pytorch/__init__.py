"""What a PyTorch script imports from msprobe.

What watches a run is loaded when it is first used: it needs torch, and comparing does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msprobe.pytorch.compare.distributed_compare import compare_distributed
from msprobe.pytorch.compare.pt_compare import compare
from tensorprobe_compat.names import tell_of_clash

if TYPE_CHECKING:
    from tensorprobe import module_dump, module_dump_end, save, seed_all
    from tensorprobe_compat.debugger import PrecisionDebugger

    torch: Any

__all__ = [
    "PrecisionDebugger",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "save",
    "seed_all",
    "torch",
]

tell_of_clash("msprobe", "mindstudio-probe")


def __getattr__(name: str) -> Any:
    if name == "PrecisionDebugger":
        return import_module("tensorprobe_compat.debugger").PrecisionDebugger
    if name == "torch":
        # `import *` gave it, too.
        return import_module("torch")
    if name not in __all__:
        raise AttributeError(f"module 'msprobe.pytorch' has no attribute {name!r}")
    return getattr(import_module("tensorprobe"), name)
