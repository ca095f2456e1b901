"""What a script imports from ptdbg_ascend, to capture a run or to compare two."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ptdbg_ascend.common.version import __version__
from ptdbg_ascend.compare.acc_compare import compare, parse
from ptdbg_ascend.compare.distributed_compare import compare_distributed

if TYPE_CHECKING:
    from ptdbg_ascend.common.utils import seed_all
    from ptdbg_ascend.debugger.precision_debugger import PrecisionDebugger
    from ptdbg_ascend.dump.dump import acc_cmp_dump, overflow_check
    from ptdbg_ascend.dump.utils import (
        set_backward_input,
        set_dump_path,
        set_dump_switch,
        set_overflow_check_switch,
    )
    from ptdbg_ascend.hook_module.register_hook import register_hook

__all__ = [
    "PrecisionDebugger",
    "__version__",
    "acc_cmp_dump",
    "compare",
    "compare_distributed",
    "overflow_check",
    "parse",
    "register_hook",
    "seed_all",
    "set_backward_input",
    "set_dump_path",
    "set_dump_switch",
    "set_overflow_check_switch",
]

# They need torch, and comparing does not.
_HOMES = {
    "PrecisionDebugger": "debugger.precision_debugger",
    "acc_cmp_dump": "dump.dump",
    "overflow_check": "dump.dump",
    "register_hook": "hook_module.register_hook",
    "seed_all": "common.utils",
    "set_backward_input": "dump.utils",
    "set_dump_path": "dump.utils",
    "set_dump_switch": "dump.utils",
    "set_overflow_check_switch": "dump.utils",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ptdbg_ascend' has no attribute {name!r}")
    return getattr(import_module(f"ptdbg_ascend.{_HOMES[name]}"), name)
