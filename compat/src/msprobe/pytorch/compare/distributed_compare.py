"""`from msprobe.pytorch.compare.distributed_compare import compare_distributed`."""

from __future__ import annotations

from tensorprobe_compat import comparing

__all__ = ["compare_distributed"]

compare_distributed = comparing.deprecated(comparing.compare_distributed)
