"""Name the operation at fault, not the ones that suffer from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorprobe.blame.analyse import analyse_rank
from tensorprobe.store import open_dump


@dataclass
class A:
    culprit: str | None
    analysis: object


def blame(c: Path, r: Path) -> A:
    a = analyse_rank(open_dump(c).parts[0], open_dump(r).parts[0])
    if a.suspects and (a.start.kind in ("none", "state") or a.suspects[0].basis == "replay"):
        return A(a.suspects[0].call, a)
    return A(None, a)
