"""The list of functions that are captured, support_wrap_ops.yaml, which may be edited here."""

from __future__ import annotations

from pathlib import Path

from tensorprobe.capture.ptdbg import PtdbgDebugger

__all__: list[str] = []

PtdbgDebugger.list_folder = Path(__file__).parent
