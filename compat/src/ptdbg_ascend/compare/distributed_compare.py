"""`from ptdbg_ascend.compare.distributed_compare import compare_distributed`."""

from __future__ import annotations

from tensorprobe_compat.comparing import compare_distributed

__all__ = ["compare_distributed"]
