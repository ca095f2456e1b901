"""`from msprobe.pytorch.compare.pt_compare import compare`."""

from __future__ import annotations

from tensorprobe_compat import comparing

__all__ = ["compare"]

compare = comparing.deprecated(comparing.compare)
