"""`api_accuracy_checker.dump.dump.set_dump_switch("ON")`."""

from __future__ import annotations

import api_accuracy_checker.hook_module  # noqa: F401 - its list of functions counts
from api_accuracy_checker.common.config import msCheckerConfig
from tensorprobe.capture.checker import CheckerCapture

__all__ = ["set_dump_switch"]

_capture = CheckerCapture(msCheckerConfig)
_capture.arm()


def set_dump_switch(switch: str) -> None:
    """Begin to capture with ON, and end it with OFF; where a DataLoader decides, do nothing."""
    _capture.turn(switch)
