"""`from ptdbg_ascend.debugger.precision_debugger import PrecisionDebugger`."""

from __future__ import annotations

from pathlib import Path

import ptdbg_ascend.hook_module
from ptdbg_ascend.common.version import __version__
from tensorprobe.capture.ptdbg import PtdbgDebugger

__all__ = ["PrecisionDebugger"]


class PrecisionDebugger(PtdbgDebugger):
    """Captures steps into the files of ptdbg_ascend; the arguments are those of `PtdbgDebugger`.

    A support_wrap_ops.yaml that was edited in this package counts.
    """

    version = __version__
    list_folder = Path(ptdbg_ascend.hook_module.__file__ or "").parent
