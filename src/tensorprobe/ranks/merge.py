"""Merge what the ranks' results say of some APIs into one workbook: a sheet per metric.

    folder ─► result_names: the newest file of each rank ─► result_choice: those of one kind
        ─► result_file: their rows, rank by rank ─► a table per metric ─► report.xlsx

A result that cannot be read, or is of another kind, is named and does not stop the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError, TableError
from tensorprobe.ranks.api_filter import ApiFilter
from tensorprobe.ranks.merge_config import MergeConfig, read_merge_config
from tensorprobe.ranks.result_choice import Told, choose_results
from tensorprobe.ranks.result_file import RankRows, ResultHead, read_head, read_rows
from tensorprobe.ranks.result_names import find_results, show_ranks
from tensorprobe.report.compare_columns import NAME, Mode, metrics_of
from tensorprobe.report.result_folder import free_timestamp, make_folder
from tensorprobe.report.table import Cell, Table
from tensorprobe.report.xlsx import write_xlsx
from tensorprobe.system.text_file import show_path

__all__ = ["MergeResult", "MergedStep", "merge_results"]

_STEM = "multi_ranks_compare_merge"
_NAMED = 3

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class MergedStep:
    """One workbook.

    Attributes:
        step: the step, where the results' names hold one.
        file: the workbook.
        mode: what the results compare: tensor (real data) or statistics.
        ranks: the ranks that have a column.
        rows: how many rows each sheet has.
        sheets: the metrics.
    """

    step: int | None
    file: Path
    mode: Mode
    ranks: tuple[int, ...]
    rows: int
    sheets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What came out of merging.

    Attributes:
        steps: one workbook for each step; one only where the results' names hold no step.
        notes: what is worth knowing.
        problems: what could not be merged.
    """

    steps: tuple[MergedStep, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def merge_results(
    results: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str] = "./output",
    *,
    progress: Progress | None = None,
) -> MergeResult:
    """Merge what the results of many ranks say of some APIs into one workbook.

    Args:
        results: the folder with the results of `compare`, of ours or of msprobe's.
        config: a YAML file, or a dict, with `api` and perhaps `compare_index`.
        output: the folder for the workbook; it is made if need be.
        progress: is told a unit (bytes), how many are read, and of how many.

    Returns:
        The workbooks, and what could not be merged.

    Raises:
        ConfigError: the configuration cannot be used, or no row belongs to its APIs.
        TableError: nothing in the folder can be merged.
        ReportError: the workbook cannot be written.
    """
    wanted = read_merge_config(config)
    for name, path in (("results", results), ("output", output)):
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"{name} is {path!r}; wanted the path of a folder")
    found = find_results(Path(results))
    told = Told([*wanted.notes, *found.notes])
    has_steps = len(found.steps) > 1
    chosen = {}
    for step, ranks in found.steps.items():
        label = _label_of(step) if has_steps else ""
        try:
            heads = choose_results(ranks, wanted, label, told)
        except ConfigError as err:
            if not has_steps:
                raise
            told.problems.append(f"{label}{err}")
            continue
        if heads:
            chosen[step] = heads
    if not chosen:
        raise TableError(_nothing_usable(Path(results), told))
    folder = Path(output)
    make_folder(folder)
    timestamp = free_timestamp(folder)
    apis = ApiFilter(wanted.apis)
    meter = _Meter(progress, [head.path for heads in chosen.values() for head in heads.values()])
    steps = []
    was_read = False
    for step, heads in chosen.items():
        label = _label_of(step) if has_steps else ""
        part = f"_step{step}" if has_steps and step is not None else ""
        rows = _read_step(heads, wanted, apis, label, told, meter)
        was_read = was_read or bool(rows)
        if any(one.cells for one in rows.values()):
            file = folder / f"{_STEM}{part}_{timestamp}.xlsx"
            mode = next(iter(heads.values())).mode
            steps.append(_write_step(step, file, mode, _sheets(heads, wanted), rows))
    unmet = [_unmet(api, near) for api, near in apis.unmet()]
    if not steps:
        if not was_read:
            raise TableError(_nothing_usable(Path(results), told))
        more = f"; and {len(unmet) - _NAMED} more" if len(unmet) > _NAMED else ""
        raise ConfigError(f"{wanted.where}: nothing to merge: {'; '.join(unmet[:_NAMED])}{more}")
    told.notes += unmet
    return MergeResult(tuple(steps), tuple(told.notes), tuple(told.problems))


def _read_step(
    heads: Mapping[int, ResultHead],
    wanted: MergeConfig,
    apis: ApiFilter,
    label: str,
    told: Told,
    meter: _Meter,
) -> dict[int, RankRows]:
    """Read the rows of every rank; one that is damaged is named."""
    sheets = _sheets(heads, wanted)
    rows: dict[int, RankRows] = {}
    if not sheets:
        return rows
    for rank, head in heads.items():
        try:
            found = read_rows(head, sheets, apis, meter.reader_of(head.path))
            path = head.path
        except TableError as err:
            other = _read_instead(head, sheets, apis)
            if other is None:
                told.problems.append(f"{label}rank {rank}: {err}")
                continue
            path, found = other
            told.notes.append(f"{label}rank {rank}: {err}; {path.name} is merged instead")
        rows[rank] = found
        if found.repeated:
            told.problems.append(
                f"{label}rank {rank}: {path.name} holds {found.repeated} rows whose name came "
                "before; of each name the first row is merged"
            )
    empty = [rank for rank, found in rows.items() if not found.cells]
    if empty and len(empty) < len(rows):
        told.notes.append(f"{label}rank {show_ranks(empty)}: none of the APIs is there")
    return rows


def _read_instead(
    head: ResultHead, sheets: Sequence[str], apis: ApiFilter
) -> tuple[Path, RankRows] | None:
    """Read another file of a result whose rows are damaged behind the header."""
    for path in head.instead:
        try:
            other = read_head(path)
            if other.mode == head.mode:
                return path, read_rows(other, sheets, apis)
        except TableError:
            continue
    return None


def _sheets(heads: Mapping[int, ResultHead], wanted: MergeConfig) -> tuple[str, ...]:
    """Return the metrics that are wanted and that at least one result has."""
    mode = next(iter(heads.values())).mode
    there = {metric for head in heads.values() for metric in head.metrics}
    return tuple(metric for metric in wanted.metrics or metrics_of(mode) if metric in there)


def _write_step(
    step: int | None,
    file: Path,
    mode: Mode,
    sheets: Sequence[str],
    rows: Mapping[int, RankRows],
) -> MergedStep:
    """Write the workbook of one step."""
    # As the first rank has them; what only later ones have comes behind.
    names = list(dict.fromkeys(name for found in rows.values() for name in found.cells))
    header = (NAME, *(f"rank{rank}" for rank in rows))

    def cells(number: int) -> Iterator[list[Cell]]:
        for name in names:
            found = (one.cells.get(name) for one in rows.values())
            yield [name, *(None if one is None else one[number] for one in found)]

    write_xlsx(file, [Table(sheet, header, cells(at)) for at, sheet in enumerate(sheets)])
    return MergedStep(step, file, mode, tuple(rows), len(names), tuple(sheets))


def _label_of(step: int | None) -> str:
    """Return what stands before a rank where there are results of several steps."""
    return "without a step, " if step is None else f"step {step}, "


def _nothing_usable(results: Path, told: Told) -> str:
    first, *more = told.problems
    others = f"; and {len(more)} more" if more else ""
    return f"{show_path(results)}: nothing can be merged: {first}{others}"


def _unmet(api: str, near: str | None) -> str:
    hint = f"; did you mean {near!r}?" if near else ""
    return f"no row of any rank belongs to {api!r}{hint}"


class _Meter:
    """Tells how much of all files is read."""

    def __init__(self, progress: Progress | None, paths: Sequence[Path]) -> None:
        self._progress = progress
        self._sizes = {path: _size_of(path) for path in paths}
        self._total = sum(self._sizes.values())
        self._before = 0

    def reader_of(self, path: Path) -> Callable[[int], None] | None:
        """Return what is told how much of a file is read; those before it are read."""
        if self._progress is None:
            return None
        tell, before, size = self._progress, self._before, self._sizes[path]
        self._before += size

        def tell_place(place: int) -> None:
            tell("bytes", before + min(place, size), self._total)

        return tell_place


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # Reading it will say what is wrong.
        return 0
