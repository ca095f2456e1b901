"""What a PyTorch script imports from msprobe.

What watches a run is loaded when it is first used: it needs torch, and comparing does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msprobe.pytorch.compare.distributed_compare import compare_distributed
from msprobe.pytorch.compare.pt_compare import compare

if TYPE_CHECKING:
    from tensorprobe import PrecisionDebugger, module_dump, module_dump_end, save, seed_all

__all__ = [
    "PrecisionDebugger",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "save",
    "seed_all",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'msprobe.pytorch' has no attribute {name!r}")
    import tensorprobe

    return getattr(tensorprobe, name)
