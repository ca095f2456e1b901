"""`from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger`."""

from __future__ import annotations

from tensorprobe import module_dump, module_dump_end
from tensorprobe_compat.debugger import PrecisionDebugger

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]
