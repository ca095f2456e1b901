"""Write and read dump folders: our own, and those of every older tool.

open_dump ─► find the files ─► one reader per format ─► Dump of RankDumps of CallRecords
DumpWriter ─► journals that grow with the run ─► the final files, each complete when it appears
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorprobe.store.dump import Dump, RankDump
from tensorprobe.store.leaves import CallLeaves, Leaf
from tensorprobe.store.locate import open_dump
from tensorprobe.tensor_data import TensorData

if TYPE_CHECKING:
    from tensorprobe.store.writer import DumpWriter

__all__ = ["CallLeaves", "Dump", "DumpWriter", "Leaf", "RankDump", "TensorData", "open_dump"]


def __getattr__(name: str) -> Any:
    if name != "DumpWriter":
        raise AttributeError(f"module 'tensorprobe.store' has no attribute {name!r}")
    # Whoever only reads does not wait for what writes.
    from tensorprobe.store.writer import DumpWriter

    return DumpWriter
