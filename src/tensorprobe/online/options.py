"""What a user asked of an online check, checked once and frozen."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch

from tensorprobe.errors import ConfigError
from tensorprobe.system.cores import count_cores
from tensorprobe.system.text_file import find_near

__all__ = ["Mode", "Options", "Precision", "make_options"]

Mode = Literal["all", "list", "auto", "off"]
Precision = Literal["higher", "same"]
_MODES = ("all", "list", "auto", "off")
_PRECISIONS = ("higher", "same")
_GIB = 1 << 30
# How alike a name must be to be suggested.
_NEAR = 0.6
# The name of a file has 255 bytes, with a rank and a time in it.
_LONGEST_TAG = 150
# As the older tool has it.
_SHARE_OF_CORES = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How an online check works.

    Attributes:
        path: the folder in which a folder of results is made.
        mode: whose data are kept: of all operators, of those in `ops`, of those that miss, of none.
        ops: the operators whose data are kept in mode list.
        tag: a part of the folder's name.
        jobs: how many threads check in the background; 0: each operator is checked when it is run.
        precision: what the reference computes in: one precision up, or the same.
        every: of each operator one call of so many is checked.
        steps: the steps that are checked; None: all.
        max_bytes: calls whose tensors are larger together are not checked; None: no such limit.
        include: parts of names, or patterns, of the operators that are checked; empty: all.
        exclude: the same of those that are not.
        memory_limit: how many bytes may wait for the threads.
        disk_limit: how many bytes of data are kept at most.
        statistics: whether the table has maximum, minimum and mean of outputs that pass, too.
        debug: whether each operator is told.
        older_rule: whether what misses the older rule alone is told as `Failed`, too.
    """

    path: Path
    mode: Mode = "auto"
    ops: frozenset[str] = frozenset()
    tag: str | None = None
    jobs: int = 0
    precision: Precision = "higher"
    every: int = 1
    steps: frozenset[int] | None = None
    max_bytes: int | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    memory_limit: int = 2 * _GIB
    disk_limit: int = 20 * _GIB
    statistics: bool = False
    debug: bool = False
    older_rule: bool = False

    def wants(self, name: str) -> bool:
        """Whether an operator is checked, by its name.

        >>> Options(Path("."), include=("mm", "*_backward")).wants("addmm")
        True
        """
        is_named = not self.include or _is_one_of(name, self.include)
        return is_named and not _is_one_of(name, self.exclude)

    def looks_at(self, name: str) -> bool:
        """Whether the numbers of an operator are wanted even if nothing is wrong with them."""
        return self.statistics or self.keeps_all_of(name)

    def keeps_all_of(self, name: str) -> bool:
        """Whether the data of all calls of an operator are kept."""
        return self.mode == "all" or (self.mode == "list" and name in self.ops)

    def find_unused(self, seen: Collection[str]) -> list[str]:
        """Return which names in `include` and `ops` are of no operator that was seen."""
        unused = [one for one in self.include if not any(_is_one_of(name, (one,)) for name in seen)]
        return unused + sorted(self.ops.difference(seen))


def _is_one_of(name: str, patterns: Iterable[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(name, pattern) if set("*?[") & set(pattern) else pattern in name
        for pattern in patterns
    )


def make_options(
    *,
    path: str | os.PathLike[str],
    mode: str,
    ops: Sequence[str] | None,
    tag: str | None,
    jobs: int,
    precision: str,
    every: int,
    steps: Collection[int] | None,
    max_bytes: int | None,
    include: Sequence[str],
    exclude: Sequence[str],
    memory_limit: int,
    disk_limit: int,
    statistics: bool,
    debug: bool,
    older_rule: bool,
) -> Options:
    """Check what a user gave.

    Raises:
        ConfigError: something of it cannot be used.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ConfigError(f"path is {path!r}, wanted the name of a folder for the results")
    chosen = mode.lower() if isinstance(mode, str) else mode
    if chosen not in _MODES:
        raise ConfigError(f"mode is {mode!r}, wanted one of {', '.join(_MODES)}")
    if precision not in _PRECISIONS:
        raise ConfigError(f"precision is {precision!r}, wanted one of {', '.join(_PRECISIONS)}")
    if tag is not None and not (isinstance(tag, str) and tag and _is_plain(tag)):
        raise ConfigError(
            f"tag is {tag!r}, wanted up to {_LONGEST_TAG} letters, digits, '.', '_' and '-': it "
            "becomes part of a folder's name"
        )
    _require_number("jobs", jobs, least=0)
    _require_number("every", every, least=1)
    _require_number("memory_limit", memory_limit, least=0)
    _require_number("disk_limit", disk_limit, least=0)
    if max_bytes is not None:
        _require_number("max_bytes", max_bytes, least=1)
    return Options(
        path=Path(path),
        mode=cast(Mode, chosen),
        ops=_check_ops(ops, is_list=chosen == "list"),
        tag=tag,
        jobs=min(jobs, max(1, count_cores() // _SHARE_OF_CORES)),
        precision=cast(Precision, precision),
        every=every,
        steps=_check_steps(steps),
        max_bytes=max_bytes,
        include=_check_names("include", include),
        exclude=_check_names("exclude", exclude),
        memory_limit=memory_limit,
        disk_limit=disk_limit,
        statistics=bool(statistics),
        debug=bool(debug),
        older_rule=bool(older_rule),
    )


def _is_plain(tag: str) -> bool:
    is_short = tag.isascii() and len(tag) <= _LONGEST_TAG
    return is_short and all(sign.isalnum() or sign in "._-" for sign in tag)


def _require_number(name: str, number: object, *, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ConfigError(f"{name} is {number!r}, wanted a whole number, {least} or more")


def _check_steps(steps: Collection[int] | None) -> frozenset[int] | None:
    if steps is None:
        return None
    found = (steps,) if isinstance(steps, int) else steps
    if not isinstance(found, Collection) or isinstance(found, str):
        raise ConfigError(f"steps is {steps!r}, wanted numbers of steps")
    for step in found:
        _require_number("steps", step, least=0)
    return frozenset(found)


def _check_names(option: str, names: Sequence[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, (list, tuple, set, frozenset)):
        raise ConfigError(f"{option} is {names!r}, wanted a list of names or patterns of operators")
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{option} holds {name!r}, wanted names or patterns of operators")
    return tuple(found)


def _check_ops(ops: Sequence[str] | None, *, is_list: bool) -> frozenset[str]:
    if ops is None or (is_list and isinstance(ops, Collection) and not ops):
        if is_list:
            raise ConfigError("mode is list and ops is not given; name operators, as in ['mm']")
        return frozenset()
    names = [_without_overload(name) for name in _check_names("ops", ops)]
    if not is_list:
        raise ConfigError("ops goes with mode='list'; to check some operators alone use include")
    known = set(dir(torch.ops.aten))
    for name in names:
        # Operators of other libraries are registered when they will be.
        if name not in known and "." not in name:
            near = find_near(name, known, cutoff=_NEAR)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"ops holds {name!r}, and torch.ops.aten has no such operator{hint}")
    return frozenset(names)


def _without_overload(name: str) -> str:
    """Return an operator's name as it is looked for.

    >>> _without_overload("aten::mm.out"), _without_overload("mine::op")
    ('mm', 'mine.op')
    """
    plain = name.replace("::", ".").removeprefix("aten.")
    first, _, rest = plain.partition(".")
    return first if rest and hasattr(torch.ops.aten, first) else plain
