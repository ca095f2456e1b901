"""`from ptdbg_ascend.compare.acc_compare import compare`; `parse` likewise."""

from __future__ import annotations

from tensorprobe_compat.comparing import compare
from tensorprobe_compat.looking import parse

__all__ = ["compare", "parse"]
