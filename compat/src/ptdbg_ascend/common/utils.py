"""`from ptdbg_ascend.common.utils import seed_all`."""

from __future__ import annotations

from tensorprobe import seed_all

__all__ = ["seed_all"]
