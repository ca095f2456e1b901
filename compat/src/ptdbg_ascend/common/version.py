"""The version of ptdbg_ascend that is answered; it is part of the names of dumps' folders."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "3.4"
