"""Tell overflows that the numbers explain from those of a faulty operation; find the first one.

    open_dump ─► find the calls that overflowed ─► replay each on the CPU ─► normal or abnormal
             └► over all ranks: which call was the first to make a value that is not finite

The room is itself the function that users call, `tensorprobe.overflow(dump)`, as `precheck` is.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tensorprobe.overflow.session import OverflowReport, overflow_dump

__all__ = ["OverflowReport", "overflow_dump"]


class _CallableRoom(ModuleType):
    def __call__(self, dump: Any, *args: Any, **options: Any) -> OverflowReport:
        """Judge every recorded overflow of a dump; see `overflow_dump` and docs/overflow.md."""
        return overflow_dump(dump, *args, **options)


sys.modules[__name__].__class__ = _CallableRoom
