"""Check operators while a run makes them: each once more on the CPU, on the same inputs.

OnlineCheck (check) ─► session ─► selection, snapshots ─► judging (precheck's) ─► files, report
"""

from __future__ import annotations

from tensorprobe.online.check import OnlineCheck
from tensorprobe.online.report import Failure, OnlineReport

__all__ = ["Failure", "OnlineCheck", "OnlineReport"]
