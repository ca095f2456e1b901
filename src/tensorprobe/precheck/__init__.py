"""Check every recorded call without a second machine.

    open_dump ─► rebuild ─► run on the device and, one precision up, on the CPU ─► judge ─► results

A call is rebuilt from its record: the function by its name, the arguments from what was written of
them, the tensors from their data or at random within the recorded range.

The room is itself the function that users call, `tensorprobe.precheck(dump)`; a module and a
function of one name cannot both be an attribute of the package.
"""

from __future__ import annotations

from tensorprobe.precheck.session import PrecheckReport, precheck_dump
from tensorprobe.system.callable_module import make_callable

__all__ = ["PrecheckReport", "precheck_dump"]

make_callable(__name__, precheck_dump)
