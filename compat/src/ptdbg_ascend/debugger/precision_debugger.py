"""`from ptdbg_ascend.debugger.precision_debugger import PrecisionDebugger`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ptdbg_ascend.hook_module  # noqa: F401 - its list of functions counts
from ptdbg_ascend.common.version import __version__
from tensorprobe.capture.ptdbg import PtdbgDebugger

__all__ = ["PrecisionDebugger"]


class PrecisionDebugger(PtdbgDebugger):
    """Captures steps into the files of ptdbg_ascend; the arguments are those of `PtdbgDebugger`."""

    def __init__(
        self,
        dump_path: str | os.PathLike[str] | None = None,
        hook_name: str | None = None,
        rank: int | None = None,
        step: Sequence[int | str] | int | None = None,
        enable_dataloader: bool = False,
        model: Any = None,
    ) -> None:
        super().__init__(
            dump_path, hook_name, rank, step, enable_dataloader, model, version=__version__
        )
