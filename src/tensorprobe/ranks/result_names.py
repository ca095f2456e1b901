"""Find the results of many ranks in a folder, by the names that `compare` and msprobe give them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tensorprobe.errors import TableError
from tensorprobe.system.text_file import show_path

__all__ = ["FoundResults", "find_results", "show_ranks"]

# ptdbg_ascend names both sides, rank0-rank0; we name the step where there are several.
_RESULT = re.compile(
    r"(compare_result(?:_step([0-9]{1,9}))?_rank([0-9]{1,9})(?:-rank([0-9]{1,9}))?_([0-9]{14}))"
    r"\.((?i:xlsx|csv))"
)
_OF_ONE = re.compile(r"(debug_)?compare_result.*\.(?i:xlsx|csv|json)")
_TABLE = re.compile(r"(?![.~]).*\.(?i:xlsx|csv)")
_MERGED = "multi_ranks_compare_merge"
_WANTED = "compare_result_rank{N}_{time}.xlsx or .csv"
_NAMED = 3


@dataclass(frozen=True, slots=True)
class FoundResults:
    """The results that a folder holds.

    Attributes:
        steps: for each step, and in it for each rank, its newest result: one file, or the same as
            xlsx and as csv. The step is None where the names hold none.
        notes: what was left out.
    """

    steps: Mapping[int | None, Mapping[int, tuple[Path, ...]]]
    notes: tuple[str, ...]


def find_results(folder: Path) -> FoundResults:
    """Find the newest result of every rank.

    Raises:
        TableError: the folder cannot be read, or holds none.
    """
    names = _names_in(folder)
    found: dict[int | None, dict[int, list[_Named]]] = {}
    others: list[str] = []
    of_two: list[str] = []
    for name in names:
        match = _RESULT.fullmatch(name)
        if match is not None:
            stem, step, rank, second, time, ending = match.groups()
            if second is not None and int(second) != int(rank):
                of_two.append(name)
                continue
            of_step = found.setdefault(None if step is None else int(step), {})
            of_step.setdefault(int(rank), []).append(_Named(time, stem, ending.lower(), name))
        elif _TABLE.fullmatch(name) and not name.startswith(_MERGED):
            others.append(name)
    if not found:
        raise TableError(_nothing_in(folder, names, of_two))
    several = []
    notes = []
    steps: dict[int | None, dict[int, tuple[Path, ...]]] = {}
    for step, ranks in sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0]):
        steps[step] = {}
        for rank, results in sorted(ranks.items()):
            latest = max(result.time for result in results)
            newest = [result for result in results if result.time == latest]
            if len(newest) < len(results):
                several.append(rank)
            chosen, left = _choose(newest)
            steps[step][rank] = tuple(folder / name for name in chosen)
            if left:
                notes.append(
                    f"{_name_some(left)}: not merged, as {chosen[0]} has the same rank and time"
                )
    if several:
        notes.insert(
            0, f"there are several results of rank {show_ranks(several)}; the newest is merged"
        )
    if of_two:
        notes.append(f"{_name_some(of_two)}: not merged, as the name has two ranks")
    if others:
        notes.append(f"{_name_some(others)}: not merged, as the name has no rank; wanted {_WANTED}")
    return FoundResults(steps, tuple(notes))


class _Named(NamedTuple):
    """What the name of a result says."""

    time: str
    stem: str
    ending: str
    name: str


def _choose(results: Sequence[_Named]) -> tuple[list[str], list[str]]:
    """Return which files of one rank and time hold its result, and which others there are.

    Those that differ in nothing but their ending are of one comparison, and xlsx stands before csv.
    """
    # The plain name is the shortest: rank2 beside rank02 or rank2-rank2.
    stem = min((result.stem for result in results), key=lambda stem: (len(stem), stem))
    by_ending = {result.ending: result.name for result in results if result.stem == stem}
    chosen = [by_ending[ending] for ending in sorted(by_ending, reverse=True)]
    return chosen, [result.name for result in results if result.name not in chosen]


def show_ranks(ranks: Iterable[int]) -> str:
    """Return numbers as a person writes them.

    >>> show_ranks([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join(_show_run(run[0], run[-1]) for run in runs)


def _show_run(first: int, last: int) -> str:
    if last - first > 1:
        return f"{first}-{last}"
    return f"{first}, {last}" if last > first else f"{first}"


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except NotADirectoryError:
        raise TableError(
            f"{show_path(folder)}: is no folder; give the one that holds the results of all ranks"
        ) from None
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else err
        raise TableError(
            f"{show_path(folder)}: the folder cannot be read: {reason}; check the path"
        ) from err


def _nothing_in(folder: Path, names: list[str], of_two: list[str]) -> str:
    where = show_path(folder)
    one = [name for name in names if _OF_ONE.fullmatch(name)]
    if of_two:
        hint = f"{_name_some(of_two)}: the name has two ranks"
    elif any(name.endswith(".json") for name in one):
        hint = "json is not read, so compare with --format xlsx"
    elif one:
        hint = f"{_name_some(one)} is of one process alone, so there is nothing to merge it with"
    else:
        hint = "give the folder that `tensorprobe compare` wrote its tables to"
    return f"{where}: holds no result of any rank, {_WANTED}; {hint}"


def _name_some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
