"""Watch a running model: API calls, modules, gradients and saved values.

PrecisionDebugger ─► Session (one step) ─► functions, modules, gradients ─► Recorder ─► store
"""

from __future__ import annotations

from tensorprobe.capture.debugger import PrecisionDebugger, save, seed_all

__all__ = ["PrecisionDebugger", "save", "seed_all"]
