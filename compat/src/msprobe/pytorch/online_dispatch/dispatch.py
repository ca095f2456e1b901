"""`from msprobe.pytorch.online_dispatch.dispatch import PtdbgDispatch`."""

from __future__ import annotations

from tensorprobe_compat.online import PtdbgDispatch

__all__ = ["PtdbgDispatch"]
