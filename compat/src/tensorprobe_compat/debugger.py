"""msprobe's `PrecisionDebugger`: that of tensorprobe, of which a process has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msprobe.pytorch.hook_module
from tensorprobe import PrecisionDebugger as Debugger
from tensorprobe.capture.current import current_debugger

__all__ = ["PrecisionDebugger"]

_ANOTHER = (
    "a second PrecisionDebugger of a process is the first one, as in msprobe, and its arguments "
    "are ignored; change debugger.config.dump_path, or close() the first"
)


class PrecisionDebugger(Debugger):
    """Captures the steps of a training run into a dump; see `tensorprobe.PrecisionDebugger`.

    Whoever makes another while one is in use gets that one, as every worker of a framework does.
    A support_wrap_ops.yaml that was edited in this package counts, unless one is named.
    """

    tool_name = "msprobe"
    list_folder = Path(msprobe.pytorch.hook_module.__file__ or "").parent

    def __new__(cls, *args: Any, **kwargs: Any) -> PrecisionDebugger:
        """Return the debugger that is in use, or a new one."""
        known = current_debugger()
        return known if isinstance(known, PrecisionDebugger) else super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "service" not in self.__dict__:
            super().__init__(*args, **kwargs)
        elif args or kwargs:
            self._tell(_ANOTHER)
