"""`from msprobe.pytorch.compare.pt_compare import compare`."""

from __future__ import annotations

from tensorprobe_compat.comparing import compare

__all__ = ["compare"]
