"""Find the operation that makes two PyTorch runs disagree.

Names are loaded when they are first used, so that `import tensorprobe` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorprobe._version import __version__

if TYPE_CHECKING:
    from tensorprobe import overflow, precheck
    from tensorprobe.blame import blame
    from tensorprobe.capture import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        save,
        seed_all,
    )
    from tensorprobe.compare import compare
    from tensorprobe.config import Config, load_config
    from tensorprobe.errors import TensorprobeError
    from tensorprobe.online import OnlineCheck
    from tensorprobe.ranks import merge_results
    from tensorprobe.replay.users import register_function
    from tensorprobe.store import Dump, DumpWriter, RankDump, open_dump

__all__ = [
    "Config",
    "Dump",
    "DumpWriter",
    "OnlineCheck",
    "PrecisionDebugger",
    "RankDump",
    "TensorprobeError",
    "__version__",
    "blame",
    "compare",
    "load_config",
    "merge_results",
    "module_dump",
    "module_dump_end",
    "open_dump",
    "overflow",
    "precheck",
    "register_function",
    "save",
    "seed_all",
]

_HOMES = {
    "Config": "config",
    "Dump": "store",
    "DumpWriter": "store",
    "OnlineCheck": "online",
    "PrecisionDebugger": "capture",
    "RankDump": "store",
    "TensorprobeError": "errors",
    "blame": "blame",
    "compare": "compare",
    "load_config": "config",
    "merge_results": "ranks",
    "module_dump": "capture",
    "module_dump_end": "capture",
    "open_dump": "store",
    "register_function": "replay.users",
    "save": "capture",
    "seed_all": "capture",
}


def __getattr__(name: str) -> Any:
    if name in ("overflow", "precheck"):
        # The room is the function.
        return import_module(f"tensorprobe.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tensorprobe' has no attribute {name!r}")
    return getattr(import_module(f"tensorprobe.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
