"""Compare two dumps: which value differs, by how much, and which is the first that fails.

    inputs ─► pair ranks ─► for every rank:
        match (calls and their values) ─► measure (real data) ─► judge ─► highlight ─► rows
            ─► advise, first difference ─► report
"""

from __future__ import annotations

from tensorprobe.compare.run import compare

__all__ = ["compare"]
