"""`api_accuracy_checker.dump.dump.set_dump_switch("ON")`."""

from __future__ import annotations

from pathlib import Path

import api_accuracy_checker.hook_module
from api_accuracy_checker.common.config import msCheckerConfig
from tensorprobe.capture.checker import CheckerCapture, CheckerDebugger

__all__ = ["set_dump_switch"]


class _Debugger(CheckerDebugger):
    """Captures a run; a support_wrap_ops.yaml that was edited in this package counts."""

    list_folder = Path(api_accuracy_checker.hook_module.__file__ or "").parent


_capture = CheckerCapture(msCheckerConfig, _Debugger)
_capture.arm()


def set_dump_switch(switch: str) -> None:
    """Begin to capture with ON, and end it with OFF; where a DataLoader decides, do nothing."""
    _capture.turn(switch)
