"""What `register_hook` is given: `acc_cmp_dump` or `overflow_check`."""

from __future__ import annotations

from tensorprobe.capture.ptdbg_options import PtdbgHook

__all__ = ["acc_cmp_dump", "overflow_check"]

acc_cmp_dump = PtdbgHook.acc_cmp_dump
overflow_check = PtdbgHook.overflow_check
