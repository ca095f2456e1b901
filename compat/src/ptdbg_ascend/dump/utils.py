"""The functions of ptdbg_ascend, which share what they arrange."""

from __future__ import annotations

from ptdbg_ascend.debugger.precision_debugger import PrecisionDebugger
from tensorprobe.capture.ptdbg import PtdbgSwitch

__all__ = [
    "register_hook",
    "set_backward_input",
    "set_dump_path",
    "set_dump_switch",
    "set_overflow_check_switch",
]

_switch = PtdbgSwitch(PrecisionDebugger)

register_hook = _switch.register_hook
set_backward_input = _switch.set_backward_input
set_dump_path = _switch.set_dump_path
set_dump_switch = _switch.set_dump_switch
set_overflow_check_switch = _switch.set_overflow_check_switch
