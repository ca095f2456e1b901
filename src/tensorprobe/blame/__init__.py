"""Name the operation at fault, not the ones that suffer from it.

    two dumps ─► order ─► agreement ─► replay, noise ─► suspicion ─► causes ─► conclusion ─► text

The room has the name of its one public function, and can be called like it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tensorprobe.blame.conclusion import Accused, Conclusion
from tensorprobe.blame.run import blame

__all__ = ["Accused", "Conclusion", "blame"]


class _Room(ModuleType):
    """`tensorprobe.blame` names the function, whether or not the room was imported before."""

    def __call__(self, *args: Any, **kwargs: Any) -> Conclusion:
        return blame(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
