"""Choose the results that are merged: those that can be read and compare the same kind of data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensorprobe.errors import ConfigError, TableError
from tensorprobe.ranks.merge_config import KINDS, MergeConfig
from tensorprobe.ranks.result_file import ResultHead, read_head
from tensorprobe.ranks.result_names import show_ranks
from tensorprobe.report.compare_columns import Mode, metrics_of

__all__ = ["Told", "choose_results"]


@dataclass(slots=True)
class Told:
    """What is said at the end.

    Attributes:
        notes: what is worth knowing.
        problems: what could not be merged.
    """

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def choose_results(
    ranks: Mapping[int, Sequence[Path]], wanted: MergeConfig, label: str, told: Told
) -> dict[int, ResultHead]:
    """Return the result of each rank that is merged; what is left out is told.

    Args:
        ranks: for each rank the files that hold its result, the first of which is read that can be.
        wanted: what is merged.
        label: what stands before the name of a rank.
        told: takes what is said.

    Raises:
        ConfigError: the metrics that are wanted are not those of these results.
    """
    heads: dict[int, ResultHead] = {}
    for rank, paths in ranks.items():
        problems = []
        for number, path in enumerate(paths):
            try:
                heads[rank] = replace(read_head(path), instead=tuple(paths[number + 1 :]))
                break
            except TableError as err:
                problems.append(f"{label}rank {rank}: {err}")
        if rank in heads:
            told.notes += [f"{problem}; {path.name} is merged instead" for problem in problems]
        else:
            told.problems += problems
    _tell_missing(ranks, label, told)
    without = [rank for rank, head in heads.items() if head.mode == "md5"]
    if without:
        name = heads[without[0]].path.name
        told.problems.append(
            f"{label}rank {show_ranks(without)}: results of md5, such as {name}, cannot be merged: "
            "checksums say only whether values are equal; compare real data or statistics"
        )
    heads = {rank: head for rank, head in heads.items() if head.mode != "md5"}
    if not heads:
        return {}
    mode = _common_mode(heads, wanted)
    for rank, head in heads.items():
        if head.mode != mode:
            told.problems.append(
                f"{label}rank {rank}: {head.path.name} compares {KINDS[head.mode]} and other ranks "
                f"{KINDS[mode]}; it is not merged"
            )
    heads = {rank: head for rank, head in heads.items() if head.mode == mode}
    for rank, head in heads.items():
        missing = [m for m in wanted.metrics or metrics_of(mode) if m not in head.metrics]
        if missing:
            told.problems.append(
                f"{label}rank {rank}: {head.path.name} has no column {', '.join(missing)}"
            )
    return heads


def _common_mode(heads: Mapping[int, ResultHead], wanted: MergeConfig) -> Mode:
    """Return what most results compare that have the metrics; of as many, what the first does."""
    counts = Counter(head.mode for head in heads.values())
    for mode, _ in counts.most_common():
        if mode in wanted.modes:
            return mode
    mode = counts.most_common(1)[0][0]
    name = next(head.path.name for head in heads.values() if head.mode == mode)
    foreign = [metric for metric in wanted.metrics if metric not in metrics_of(mode)]
    raise ConfigError(
        f"{wanted.where}: compare_index holds {', '.join(map(repr, foreign))}, and the newest "
        f"results, such as {name}, compare {KINDS[mode]}, whose metrics are "
        f"{', '.join(metrics_of(mode))}"
    )


def _tell_missing(ranks: Mapping[int, object], label: str, told: Told) -> None:
    """Name the ranks that have no result, though a higher one has; however high that is."""
    gaps = []
    following = 0
    for rank in sorted(ranks):
        if rank > following:
            gaps.append(f"{following}-{rank - 1}" if rank - following > 1 else f"{following}")
        following = rank + 1
    if gaps:
        told.notes.append(f"{label}there is no result of rank {', '.join(gaps)}")
