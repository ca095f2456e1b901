"""Open whatever a path leads to: a file, a rank folder, a step folder, a whole dump path."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from tensorprobe.errors import DumpError
from tensorprobe.records import DumpInfo, Gap
from tensorprobe.store.checker_reader import is_checker_file, open_checker_files
from tensorprobe.store.data_folder import inside
from tensorprobe.store.dump import Dump, RankDump
from tensorprobe.store.layout import DATA_FOLDER, PART_SUFFIX
from tensorprobe.store.msprobe_reader import open_rank_file
from tensorprobe.store.ptdbg_reader import open_ptdbg_file
from tensorprobe.store.unfinished import wait_for_finishers

__all__ = ["data_folders_of", "open_dump", "place_of"]

_JSON_NAMES = ("dump.json", "debug.json")
_STEP = re.compile(r"step(?P<number>[0-9]{1,18})")
_RANK = re.compile(r"rank(?P<number>[0-9]{1,18})?")
_PROCESS = re.compile(r"proc(?P<number>[0-9]{1,18})")
# ptdbg_ascend names the folder below the dump path after a tag and its version.
_TAGGED = re.compile(r".+_v[0-9]+\.[0-9]+")
# Deeper than tag/step/rank there is nothing to find.
_DEEPEST = 4

_Open = Callable[[Path, DumpInfo], RankDump]


@dataclass(frozen=True, slots=True)
class _Found:
    """One file to open, by which reader, and what the folders around it say."""

    path: Path
    info: DumpInfo
    open: _Open


def open_dump(path: str | PathLike[str], *, backward: str | PathLike[str] | None = None) -> Dump:
    """Open a dump of any tool, with everything under the path that belongs to it.

    >>> import tempfile
    >>> from tensorprobe.store import DumpWriter
    >>> from tensorprobe.records import CallRecord, DumpInfo
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DumpWriter(folder, DumpInfo(step=0)) as writer:
    ...         _ = writer.write(CallRecord("Torch.relu.0.forward", inputs=(None,)))
    ...     [call.name for call in open_dump(folder)]
    ['Torch.relu.0.forward']

    Args:
        path: a dump.json, debug.json, forward_info_*.json or ptdbg text `.pkl`; or a rank folder, a
            step folder with many ranks, or a whole dump path with steps.
        backward: where that is a forward_info_*.json: its backward file, if it is not beside it or
            has another name.

    Returns:
        The dump; its `gaps` name what is missing or damaged.

    Raises:
        DumpError: nothing under the path can be opened as a dump.
    """
    path = Path(path)
    # It may be one of this process, whose last records are still on their way to the disk.
    wait_for_finishers()
    try:
        found, gaps = _find(path) if backward is None else (_find_pair(path, Path(backward)), [])
    except (OSError, ValueError) as err:
        raise DumpError(f"{path} cannot be read: {err}") from err
    parts: list[RankDump] = []
    errors: list[DumpError] = []
    for item in found:
        try:
            parts.append(item.open(item.path, item.info))
        except DumpError as err:
            gaps.append(Gap(item.path, str(err)))
            errors.append(err)
    if not parts:
        if len(errors) == 1:
            raise errors[0]
        raise DumpError(str(gaps[0]) if gaps else _nothing_found(path))
    parts.sort(key=_order)
    return Dump(path, parts, gaps)


def data_folders_of(path: Path) -> list[Path]:
    """Return the folders that the tensors of a dump are read from, whether they are there or not.

    Raises:
        DumpError: there is nothing under the path.
        OSError: it cannot be looked into.
    """
    found, _ = _find(path)
    return [folder for item in found for folder in _data_folders_beside(item.path)]


def _data_folders_beside(file: Path) -> list[Path]:
    if is_checker_file(file.name):
        return [file.parent / f"{direction}_real_data" for direction in ("forward", "backward")]
    return [file.with_suffix("") if file.suffix == ".pkl" else file.parent / DATA_FOLDER]


def _order(part: RankDump) -> tuple[int, int, int]:
    info = part.info
    return tuple(-1 if n is None else n for n in (info.step, info.rank, info.process))  # type: ignore[return-value]


def _find(path: Path) -> tuple[list[_Found], list[Gap]]:
    if path.is_dir():
        gaps: list[Gap] = []
        return list(_find_in_folder(path, _info_around(path), gaps, depth=0)), gaps
    if not path.exists():
        part = path.with_name(path.name + PART_SUFFIX)
        if not part.exists():
            raise DumpError(f"{path} does not exist; check the path")
        path = part
    return [_Found(path, _info_around(path.parent), _reader_for(path))], []


def _find_pair(forward: Path, backward: Path) -> list[_Found]:
    reader = functools.partial(open_checker_files, backward=backward)
    return [_Found(forward, _info_around(forward.parent), reader)]


def _reader_for(path: Path) -> _Open:
    if is_checker_file(path.name):
        return open_checker_files
    return open_ptdbg_file if path.suffix == ".pkl" else open_rank_file


def _open_inside(path: Path, info: DumpInfo) -> RankDump:
    """Open a file that was found, not given: it may not be a link that leads elsewhere."""
    return _reader_for(path)(inside(path.parent, path.name), info)


def _find_in_folder(
    folder: Path, info: DumpInfo, gaps: list[Gap], *, depth: int
) -> Iterator[_Found]:
    try:
        names = sorted(child.name for child in folder.iterdir())
    except OSError as err:
        gaps.append(Gap(folder, f"this folder cannot be read: {err.strerror or err}"))
        return
    files = list(_dump_files(names))
    for name in files:
        yield _Found(folder / name, info, _open_inside)
    if depth == _DEEPEST:
        return
    is_leaf = True
    for name in names:
        child = folder / name
        if _leads_on(name) and child.is_dir():
            is_leaf = False
            try:
                inside(folder, name)
            except DumpError as err:
                gaps.append(Gap(child, str(err)))
                continue
            yield from _find_in_folder(child, _with_folder(info, name), gaps, depth=depth + 1)
    if is_leaf and not files and depth:
        gaps.append(Gap(folder, "this folder holds no dump.json; its part of the run is missing"))


def _dump_files(names: list[str]) -> Iterator[str]:
    processes = set()
    for name in names:
        if name.removesuffix(PART_SUFFIX) in _JSON_NAMES:
            # A finished file and a journal side by side: the journal is what was replaced.
            if not (name.endswith(PART_SUFFIX) and name.removesuffix(PART_SUFFIX) in names):
                yield name
        elif is_checker_file(name) and not name.startswith("stack"):
            process = name.partition("_info_")[2]
            if process not in processes:
                processes.add(process)
                yield name
        elif name.endswith(".pkl"):
            yield name


def _leads_on(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_STEP, _RANK, _PROCESS, _TAGGED))


def place_of(gap: Gap) -> DumpInfo:
    """Return which rank and step something would be of that could not be opened."""
    return _info_around(gap.path if gap.path.is_dir() else gap.path.parent)


def _info_around(folder: Path) -> DumpInfo:
    """Read rank and step off the names of a folder and of the one above it."""
    try:
        resolved = folder.resolve()
    except (OSError, RuntimeError):
        resolved = folder
    return _with_folder(_with_folder(DumpInfo(), resolved.parent.name), resolved.name)


def _with_folder(info: DumpInfo, name: str) -> DumpInfo:
    if match := _STEP.fullmatch(name):
        return replace(info, step=int(match["number"]))
    if match := _RANK.fullmatch(name):
        return replace(info, rank=None if match["number"] is None else int(match["number"]))
    if match := _PROCESS.fullmatch(name):
        return replace(info, process=int(match["number"]))
    return info


def _nothing_found(path: Path) -> str:
    below = sorted(
        str(child.relative_to(path))
        for child in path.iterdir()
        if child.is_dir() and any(_find_in_folder(child, DumpInfo(), [], depth=0))
    )
    if len(below) == 1:
        return f"{path} is no dump itself but holds one: {below[0]}; give that"
    if below:
        shown = ", ".join(below[:5]) + (", …" if len(below) > 5 else "")
        return f"{path} is no dump itself but holds several: {shown}; give one of them"
    return (
        f"{path} holds no dump: no dump.json, debug.json, forward_info_*.json or *.pkl in it or in "
        "its step and rank folders; check the path"
    )
