"""Tell overflows that the numbers explain from those of a faulty operation; find the first one.

    open_dump ─► find the calls that overflowed ─► replay each on the CPU ─► normal or abnormal
             └► over all ranks: which call was the first to make a value that is not finite

The room is itself the function that users call, `tensorprobe.overflow(dump)`, as `precheck` is.
"""

from __future__ import annotations

from tensorprobe.overflow.session import OverflowReport, overflow_dump
from tensorprobe.system.callable_module import make_callable

__all__ = ["OverflowReport", "overflow_dump"]

make_callable(__name__, overflow_dump)
