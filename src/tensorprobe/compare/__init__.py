"""Compare two dumps: which value differs, by how much, and which is the first that fails.

    inputs ─► pair ranks ─► for every rank:
        match (calls and their values) ─► measure (real data) ─► judge ─► highlight ─► rows
            ─► advise, first difference ─► report

The room has the name of its one public function, and can be called like it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tensorprobe.compare.result import ComparisonResult, PartResult, Tally
from tensorprobe.compare.run import compare

__all__ = ["ComparisonResult", "PartResult", "Tally", "compare"]


class _Room(ModuleType):
    """`tensorprobe.compare` names the function, whether or not the room was imported before."""

    def __call__(self, *args: Any, **kwargs: Any) -> ComparisonResult:
        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
