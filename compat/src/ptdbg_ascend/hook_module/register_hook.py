"""`from ptdbg_ascend.hook_module.register_hook import register_hook`."""

from __future__ import annotations

from ptdbg_ascend.dump.utils import register_hook

__all__ = ["register_hook"]
