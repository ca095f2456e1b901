"""Let a room be called like its one public function.

`tensorprobe.compare(…)` is the function and `tensorprobe.compare` the package that holds it: one
name cannot be both, so the package itself can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


def make_callable(room: str, function: Callable[..., Any]) -> None:
    """Have a call of the room be a call of the function.

    Args:
        room: the module's name.
        function: what it stands for.
    """

    class Room(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return function(*args, **options)

    sys.modules[room].__class__ = Room
