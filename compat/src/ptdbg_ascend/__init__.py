"""What a script imports from ptdbg_ascend to compare two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptdbg_ascend.compare.acc_compare import compare
from ptdbg_ascend.compare.distributed_compare import compare_distributed

if TYPE_CHECKING:
    from tensorprobe import seed_all

__all__ = ["compare", "compare_distributed", "seed_all"]


def __getattr__(name: str) -> Any:
    # It needs torch, and comparing does not.
    if name != "seed_all":
        raise AttributeError(f"module 'ptdbg_ascend' has no attribute {name!r}")
    import tensorprobe

    return tensorprobe.seed_all
