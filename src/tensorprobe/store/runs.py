"""Tell one run's steps from those that an earlier run left in the same folder.

    a run begins ─► its mark goes into each dump.json ─► a reader finds several marks ─► a notice

A step that is written again replaces the old one. Those of the earlier run that are not written
again stay: somebody may add steps to a folder on purpose, and what is deleted does not come back.
So nothing is removed, and it is told, when the run begins and whenever the dumps are looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

from tensorprobe.records import DumpInfo
from tensorprobe.store.file_names import rank_folder
from tensorprobe.store.layout import PART_SUFFIX
from tensorprobe.store.run_folders import RunFolders

__all__ = ["Run", "mixed_runs_notice", "named_steps", "tell_of_earlier_steps"]

_STEP = re.compile(r"step([0-9]{1,18})")
_MAIN_FILES = tuple(
    name + suffix for name in ("dump.json", "debug.json") for suffix in ("", PART_SUFFIX)
)
_LISTED = 10


class Run:
    """One run of one process, which begins with the first step that it writes.

    Attributes:
        folders: those that it writes into.
    """

    def __init__(self) -> None:
        self._mark: str | None = None
        self.folders = RunFolders()

    def mark(
        self, dump_path: Path | None, step: int, rank: int | None, tell: Callable[[str], None]
    ) -> str:
        """Return what tells this run from all others; the later of two has the greater mark.

        Args:
            dump_path: where its dumps go.
            step: the step that begins.
            rank: of this process; it looks at its own dumps alone, as other ranks may have begun.
            tell: told, the first time, of steps that an earlier run left there.
        """
        if self._mark is None:
            self._mark = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}Z-{os.getpid()}"
            # One rank's word is enough.
            if dump_path is not None and not rank:
                tell_of_earlier_steps(dump_path, step, rank, tell)
        return self._mark


def _holds_dump(folder: Path) -> bool:
    return any((folder / name).exists() for name in _MAIN_FILES)


def tell_of_earlier_steps(
    dump_path: Path,
    step: int,
    rank: int | None,
    tell: Callable[[str], None],
    holds_dump: Callable[[Path], bool] = _holds_dump,
) -> None:
    """Say which steps an earlier run left in a folder, if any.

    Args:
        dump_path: the folder.
        step: the one that begins, which replaces what is there.
        rank: of this process; it looks at its own dumps alone.
        tell: told of them.
        holds_dump: whether there is a dump in the folder of a step and rank.
    """
    found = [
        other
        for other in _steps_of(dump_path)
        if other != step and holds_dump(rank_folder(dump_path, step=other, rank=rank))
    ]
    if found:
        tell(
            f"{dump_path} holds {named_steps(found)} of an earlier run: what this run writes again "
            "is replaced, the rest stays beside it; remove it first or use another dump_path, if "
            "the two do not belong together"
        )


def mixed_runs_notice(path: Path, infos: Iterable[DumpInfo]) -> str | None:
    """Return what to tell of dumps that several runs wrote; None where all are of one.

    >>> infos = [DumpInfo(step=0, run="2026-02-01T08:00:00Z"), DumpInfo(step=1, run="2025")]
    >>> mixed_runs_notice(Path("dump"), infos)
    'dump: step 1 is left from an earlier run than step 0, which began at 2026-02-01 08:00:00 UTC'
    """
    ranks: dict[tuple[int | None, int | None], dict[str, list[int]]] = {}
    for info in infos:
        if info.run is not None and info.step is not None:
            # Ranks of one run begin at different times, so each is held against itself.
            runs = ranks.setdefault((info.rank, info.process), {})
            runs.setdefault(info.run, []).append(info.step)
    left: set[int] = set()
    kept: set[int] = set()
    newest = ""
    for runs in ranks.values():
        last = max(runs)
        newest = max(newest, last)
        kept.update(runs[last])
        left.update(step for run, steps in runs.items() if run != last for step in steps)
    if not left:
        return None
    began = newest[:19].replace("T", " ")
    is_or_are = "is" if len(left) == 1 else "are"
    return (
        f"{path}: {named_steps(left)} {is_or_are} left from an earlier run than "
        f"{named_steps(kept)}, which began at {began} UTC"
    )


def _steps_of(dump_path: Path) -> list[int]:
    try:
        names = os.listdir(dump_path)
    except OSError:
        # Not made yet; or it cannot be read, which whoever writes into it finds out.
        return []
    return [int(match[1]) for name in names if (match := _STEP.fullmatch(name))]


def named_steps(steps: Iterable[int]) -> str:
    """Return steps in words.

    >>> named_steps([1, 0]), named_steps([4])
    ('steps 0, 1', 'step 4')
    """
    ordered = sorted(steps)
    shown = ", ".join(map(str, ordered[:_LISTED])) + (", …" if len(ordered) > _LISTED else "")
    return f"step{'s' if len(ordered) > 1 else ''} {shown}"
