"""`from msprobe.pytorch.common import seed_all`."""

from __future__ import annotations

from msprobe.pytorch.common.utils import seed_all

__all__ = ["seed_all"]
