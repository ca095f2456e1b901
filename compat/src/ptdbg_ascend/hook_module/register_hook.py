"""`from ptdbg_ascend.hook_module.register_hook import register_hook`."""

from __future__ import annotations

from typing import Any

from ptdbg_ascend.common.version import __version__
from tensorprobe.capture.ptdbg import switch as _switch

__all__ = ["register_hook"]


def register_hook(
    model: Any,
    hook: Any,
    *,
    overflow_nums: int = 1,
    dump_mode: str = "api",
    dump_config: Any = None,
    rank: int | None = None,
) -> None:
    """Say what to do with the calls of a run: `acc_cmp_dump` or `overflow_check`."""
    _switch.register(
        model,
        hook,
        version=__version__,
        rank=rank,
        overflow_nums=overflow_nums,
        dump_mode=dump_mode,
        dump_config=dump_config,
    )
