"""Compare two dumps: which value differs, by how much, and which is the first that fails.

    inputs ─► pair ranks ─► for every rank:
        match (calls and their values) ─► measure (real data) ─► judge ─► highlight ─► rows
            ─► advise, first difference ─► report

The room has the name of its one public function, and can be called like it.
"""

from __future__ import annotations

from tensorprobe.compare.result import ComparisonResult, PartResult, Tally
from tensorprobe.compare.run import compare
from tensorprobe.system.callable_module import make_callable

__all__ = ["ComparisonResult", "PartResult", "Tally", "compare"]

make_callable(__name__, compare)
