"""`from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger`."""

from __future__ import annotations

from tensorprobe import PrecisionDebugger, module_dump, module_dump_end

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]
