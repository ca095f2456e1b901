"""`from msprobe.pytorch.online_dispatch import PtdbgDispatch`."""

from __future__ import annotations

from msprobe.pytorch.online_dispatch.dispatch import PtdbgDispatch

__all__ = ["PtdbgDispatch"]
