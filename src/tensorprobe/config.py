"""Turn a config.json of the older tools, and arguments, into one frozen, validated Config.

    file ─► fields of the top level and of the task's block ─┐
    arguments (they win) ────────────────────────────────────┴─► parse each ─► Config

A file that was written for the older tools is accepted as it is. What a field of theirs cannot do
here is said in ``Config.notices``, which the caller prints once. A value that cannot be meant, and
a field whose name is nearly a known one, end in a ConfigError: a filter with a typing error in it
costs a run on a cluster. Blocks of tasks that are not asked for are not looked at. The file is
past 500 lines because a third of it is the table of every field, old and new.
"""

from __future__ import annotations

import operator
import os
import re
import reprlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from tensorprobe.errors import ConfigError
from tensorprobe.system.text_file import find_near, read_json, read_yaml, show_path

__all__ = [
    "DEFAULT_DUMP_PATH",
    "Config",
    "DataMode",
    "FileFormat",
    "Level",
    "Task",
    "change_config",
    "load_config",
]

DEFAULT_DUMP_PATH = Path("dump_path")
"""Where a dump goes if nobody says it."""

Task = Literal["statistics", "tensor", "overflow_check", "structure", "run_ut"]
Level = Literal["L0", "L1", "L2", "mix", "debug"]
DataMode = Literal["all", "forward", "backward", "input", "output"]
SummaryMode = Literal["statistics", "md5"]
FileFormat = Literal["pt", "npy"]

Numbers = Sequence[int | str] | int | str
Names = Sequence[str] | str
_Place = tuple[str, Mapping[str, Any]]  # how messages name a group of fields, and the fields


@dataclass(frozen=True, slots=True)
class Config:
    """What to capture, where to put it and what to leave out; docs/config.md explains each field.

    An empty ``rank``, ``step``, ``scope`` or ``list`` leaves nothing out. The older tools also put
    the settings of the pre-check into this file: with task ``run_ut`` only ``white_list``,
    ``black_list`` and ``error_data_path`` are read from it, and there is nothing to capture.

    >>> Config()  # doctest: +ELLIPSIS
    Config(task='statistics', dump_path=None, level='L1', rank=(), step=(), ...)
    """

    task: Task = "statistics"
    dump_path: Path | None = None
    level: Level = "L1"
    rank: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    enable_dataloader: bool = False
    dump_enable: bool | None = None
    api_list: Path | None = None
    add_apis: tuple[str, ...] = ()
    skip_apis: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    tensor_list: tuple[str, ...] = ()
    data_mode: tuple[DataMode, ...] = ("all",)
    summary_mode: SummaryMode = "statistics"
    file_format: FileFormat = "pt"
    memory_budget: int = 512
    overflow_nums: int = 1
    white_list: tuple[str, ...] = ()
    black_list: tuple[str, ...] = ()
    error_data_path: Path | None = None
    notices: tuple[str, ...] = ()
    places: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)

    def place_of(self, name: str) -> str:
        """Say where a field was set, as messages about its value name it.

        >>> load_config(list=["relu"]).place_of("list"), Config().place_of("list")
        ('argument list', 'list')
        """
        return dict(self.places).get(name, name)

    def wants_rank(self, rank: int | None) -> bool:
        """Say whether a rank is captured; None, which is not known yet, may turn out to be one.

        >>> Config(rank=(0, 4, 5)).wants_rank(4), Config().wants_rank(7)
        (True, True)
        """
        return not self.rank or rank is None or _holds(self.rank, rank)

    def wants_step(self, step: int) -> bool:
        """Say whether a step is captured.

        >>> Config(step=(2,)).wants_step(1)
        False
        """
        return not self.step or _holds(self.step, step)

    def wants_data(
        self, direction: Literal["forward", "backward"], side: Literal["input", "output"]
    ) -> bool:
        """Say whether ``data_mode`` keeps one side of one direction.

        >>> config = Config(data_mode=("forward", "input"))
        >>> config.wants_data("forward", "input"), config.wants_data("backward", "input")
        (True, False)
        """
        directions = {"forward", "backward"}.intersection(self.data_mode)
        sides = {"input", "output"}.intersection(self.data_mode)
        return direction in (directions or {direction}) and side in (sides or {side})


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    rank: Numbers | None = None,
    step: Numbers | None = None,
    enable_dataloader: bool | None = None,
    dump_enable: bool | None = None,
    api_list: str | os.PathLike[str] | None = None,
    add_apis: Names | None = None,
    skip_apis: Names | None = None,
    scope: Names | None = None,
    list: Names | None = None,
    tensor_list: Names | None = None,
    data_mode: Names | None = None,
    summary_mode: str | None = None,
    file_format: str | None = None,
    memory_budget: int | None = None,
    overflow_nums: int | None = None,
    white_list: Names | None = None,
    black_list: Names | None = None,
    error_data_path: str | os.PathLike[str] | None = None,
) -> Config:
    """Read a configuration file, let the arguments win over it, and check every value.

    >>> config = load_config(task="tensor", step=[0, "4-6"], list=["relu"])
    >>> config.task, config.level, config.step, config.list
    ('tensor', 'L1', (0, 4, 5, 6), ('relu',))
    >>> load_config(level="l1")
    Traceback (most recent call last):
    ...
    tensorprobe.errors.ConfigError: argument level is 'l1', wanted 'L0', 'L1', 'L2', 'mix' or \
'debug'; did you mean 'L1'?

    Args:
        path: a ``.json``, ``.yaml`` or ``.yml`` file; without one, the defaults hold.
        task: the task; the block of this name in the file is the one that is read.
        dump_path: where to put the dump.
        level: what is watched.
        rank: the ranks to capture, as numbers and ranges such as "4-6"; empty for every one.
        step: the steps to capture, likewise.
        enable_dataloader: start and stop at the iterations of a DataLoader.
        dump_enable: False captures nothing; a file with this field is read again when it changes.
        api_list: a YAML file with the functions to capture, a support_wrap_ops.yaml.
        add_apis: functions to capture beside the known ones, such as "torch_npu.npu_rms_norm".
        skip_apis: functions not to capture.
        scope: the first and the last call of the range to capture.
        list: names, or parts of names, of the calls to capture.
        tensor_list: names, or parts of names, of the calls whose real data is kept as well.
        data_mode: which direction and side to keep.
        summary_mode: what to write for a tensor.
        file_format: of the files with real data.
        memory_budget: the most MiB of real data in memory on their way to the disk.
        overflow_nums: stop after so many overflows; -1 for never.
        white_list: the only APIs to pre-check.
        black_list: APIs not to pre-check.
        error_data_path: where the pre-check keeps the data of failing APIs.

    Returns:
        The Config. Print its ``notices`` once.

    Raises:
        ConfigError: a file that cannot be read, an unknown field with a known name close to it, or
            a value that is not allowed.
    """
    arguments = dict(locals())
    return _build_config(arguments.pop("path"), arguments)


def change_config(config: Config, **fields: object) -> Config:
    """Return a configuration with other values in some fields, each checked as in a file.

    >>> change_config(Config(), dump_path="other", step=[3, "5-6"]).step
    (3, 5, 6)

    Raises:
        ConfigError: there is no such field, or a value is not allowed.
    """
    notices: list[str] = []
    values: dict[str, Any] = {}
    for name, value in fields.items():
        parse = {**_GENERAL, **_CAPTURE, **_PRECHECK}.get(name)
        if parse is None:
            near = find_near(name, {*_GENERAL, *_CAPTURE, *_PRECHECK}, cutoff=0.6)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"{name} is no field that can be changed{hint}")
        values[name] = parse(value, _Spot(name, notices))
    return replace(config, **values, notices=tuple(notices))


def _build_config(path: str | os.PathLike[str] | None, arguments: Mapping[str, object]) -> Config:
    """Take each field from the arguments, the task's block or the top level, and parse it."""
    notices: list[str] = []
    if not isinstance(path, str | os.PathLike | None):
        _Spot("the configuration", notices).refuse(path, "the path of a .json, .yaml or .yml file")
    file = "" if path is None else show_path(path)
    top = {} if path is None else _read_fields(path, file)
    given, outside = ("argument ", arguments), (f"{file}: ", top)
    asked, where = _find("task", given, outside) or ("statistics", "")
    task, blocks = _parse_task(asked, _Spot(where, notices))

    own = next((block for block in blocks if block in top), blocks[0])
    block = {} if top.get(own) is None else top[own]
    if not isinstance(block, dict):
        _Spot(f"{file}: {own}", notices).refuse(block, "fields in braces")
    inside = (f"{file}: {own}.", block)
    inner = _PRECHECK if task == "run_ut" else _CAPTURE
    _check_fields(outside, {*_GENERAL, *_PRECHECK, *_TASKS, "task"}, notices)
    _check_fields(inside, {*inner}, notices)

    values: dict[str, Any] = {"task": task}
    places = {"task": where} if where else {}
    for name, parse in {**_GENERAL, **_CAPTURE, **_PRECHECK}.items():
        # The oldest files of the pre-check have no block; other misplaced fields are refused above.
        written = (inside, outside) if name in _GENERAL or name in inner else ()
        if found := _find(name, given, *written):
            values[name] = parse(found[0], _Spot(found[1], notices))
            places[name] = found[1]
    both = sorted({*values.get("add_apis", ())}.intersection(values.get("skip_apis", ())))
    if both:
        homes = f"{places['add_apis']} and in {places['skip_apis']}"
        raise ConfigError(f"{both[0]!r} is in {homes}; take it out of one")
    return Config(**values, notices=tuple(notices), places=tuple(places.items()))


def _find(field: str, *places: _Place) -> tuple[object, str] | None:
    return next(
        ((fields[field], where + field) for where, fields in places if _is_set(fields.get(field))),
        None,
    )


def _read_fields(path: str | os.PathLike[str], file: str) -> dict[str, Any]:
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        fields = read_json(path, error=ConfigError)
    elif suffix in (".yaml", ".yml"):
        fields = read_yaml(path, error=ConfigError)
    else:
        raise ConfigError(f"{file}: the name of a configuration ends in .json, .yaml or .yml")
    if not isinstance(fields, dict):
        held = "nothing" if fields is None else _show(fields)
        raise ConfigError(f"{file}: the file holds {held}, wanted fields; write at least {{}}")
    return fields


def _check_fields(place: _Place, known: set[str], notices: list[str]) -> None:
    """Let known fields pass, name those without effect, and refuse what is a slip of the pen."""
    where, fields = place
    if len(fields) > _MOST_FIELDS:
        raise ConfigError(f"{where}{len(fields)} fields cannot be a configuration; check the file")
    for name, value in fields.items():
        if name in known:
            continue
        shown = f"{where}{name if isinstance(name, str) and name.isidentifier() else _show(name)}"
        if not isinstance(name, str):
            raise ConfigError(f"{shown} is no name of a field; names are texts")
        if name in _IGNORED:
            harmless, reason = _IGNORED[name]
            if _is_set(value) and value not in harmless:
                notices.append(f"{shown} has no effect: {reason}")
            continue
        for home, names in _HOMES.items():
            if name in names:
                raise ConfigError(f"{shown} stands in the wrong place; move it to {home}")
        if near := find_near(name, known.union(_IGNORED), cutoff=0.75):
            raise ConfigError(f"{shown} is an unknown field; did you mean {near!r}?")
        for home, names in _HOMES.items():
            if near := find_near(name, names, cutoff=0.85):
                raise ConfigError(f"{shown} is an unknown field; did you mean {near!r} in {home}?")
        notices.append(f"{shown} has no effect: no field of this name is known")


# Values -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Spot:
    """The place that a value comes from, as messages name it."""

    where: str
    notices: list[str]

    def note(self, text: str) -> None:
        self.notices.append(f"{self.where} {text}")

    def refuse(
        self, value: object, wanted: str, *, known: Iterable[str] = (), verb: str = "is"
    ) -> NoReturn:
        near = find_near(value, known, cutoff=0.6) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{self.where} {verb} {_show(value)}, wanted {wanted}{hint}")


def _parse_task(value: object, spot: _Spot) -> tuple[Task, tuple[str, ...]]:
    """Give the task and the blocks that may hold its settings, the likeliest first."""
    if not isinstance(value, str) or value not in _TASKS:
        spot.refuse(value, _one_of(get_args(Task)), known=_TASKS)
    task, blocks, notice = _TASKS[value]
    if notice:
        spot.note(f"{value!r} {notice}")
    return task, blocks


def _parse_choice(*allowed: str) -> Callable[[object, _Spot], str]:
    def parse(value: object, spot: _Spot) -> str:
        if not isinstance(value, str) or value not in allowed:
            spot.refuse(value, _one_of(allowed), known=allowed)
        return value

    return parse


def _parse_flag(value: object, spot: _Spot) -> bool:
    if not isinstance(value, bool):
        spot.refuse(value, "true or false")
    return value


def _parse_path(value: object, spot: _Spot) -> Path:
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        # Text that no file system takes: a NUL, or half of a surrogate pair.
        if isinstance(path, str) and "\0" not in path and not _SURROGATE.search(path):
            return Path(path)
    return spot.refuse(value, "a path")


def _parse_numbers(value: object, spot: _Spot) -> tuple[int, ...]:
    wanted = f'numbers from 0 to {_LARGEST} and ranges such as "4-6" in a list, or [] for every one'
    if isinstance(value, int | str):
        value = [value]
    if not isinstance(value, list | tuple | range | set | frozenset):
        spot.refuse(value, wanted)
    count = 0
    numbers: set[int] = set()
    for item in value:
        ends = _parse_range(item)
        if ends is None or ends[1] > _LARGEST:
            spot.refuse(item, wanted, verb="holds")
        first, last = ends
        if first > last:
            spot.refuse(item, f"the smaller number first, {f'{last}-{first}'!r}", verb="holds")
        count += last - first + 1
        if count > _MOST_NUMBERS:
            most = f"at most {_MOST_NUMBERS} numbers in all, or [] for every one"
            spot.refuse(item, most, verb="holds")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def _parse_range(item: Any) -> tuple[int, int] | None:
    if isinstance(item, str):
        match = _RANGE.fullmatch(item)
        return (int(match[1]), int(match[2] or match[1])) if match else None
    try:
        number = -1 if isinstance(item, bool) else operator.index(item)  # also those of numpy
    except TypeError:
        return None
    return (number, number) if number >= 0 else None


def _parse_names(value: object, spot: _Spot) -> tuple[str, ...]:
    wanted = 'a list of names, such as ["relu"]'
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        spot.refuse(value, wanted)
    for item in value:
        if not isinstance(item, str) or not item.strip():
            spot.refuse(item, wanted, verb="holds")
    return tuple(dict.fromkeys(item.strip() for item in value))


def _parse_scope(value: object, spot: _Spot) -> tuple[str, ...]:
    names = _parse_names(value, spot)
    if isinstance(value, list | tuple) and len(value) == 2:
        return names[0], names[-1]  # the same name twice is a range of one call
    if names:
        spot.refuse(value, "two names, the first and the last call, or [] for every call")
    return ()


def _parse_apis(value: object, spot: _Spot) -> tuple[str, ...]:
    names = _parse_names(value, spot)
    for name in names:
        parts = name.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            wanted = 'names with a dot, such as "torch_npu.npu_rms_norm" or "Tensor.__getitem__"'
            spot.refuse(name, wanted, verb="holds")
    return names


def _parse_data_mode(value: object, spot: _Spot) -> tuple[str, ...]:
    allowed = get_args(DataMode)
    modes = _parse_names(value, spot)
    for mode in modes:
        if mode not in allowed:
            spot.refuse(mode, _one_of(allowed), known=allowed, verb="holds")
    if "all" in modes and len(modes) > 1:
        spot.refuse(value, "'all' alone, or any of the others")
    return tuple(mode for mode in allowed if mode in modes) or ("all",)


def _parse_summary_mode(value: object, spot: _Spot) -> str:
    if value == "xor":
        spot.note("'xor' is done by 'md5' here, a CRC-32")
        return "md5"
    if isinstance(value, list) and all(item in _STATISTICS for item in value):
        spot.note("is a list: every statistic is written, and the checksum where it is asked for")
        return "md5" if "md5" in value or "hash" in value else "statistics"
    return _parse_choice(*get_args(SummaryMode))(value, spot)


def _parse_file_format(value: object, spot: _Spot) -> str:
    if value == "bin":
        spot.note("'bin' has no effect: real data is written as .pt, or as .npy")
        return "pt"
    return _parse_choice(*get_args(FileFormat))(value, spot)


def _parse_memory_budget(value: object, spot: _Spot) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_MIB:
        spot.refuse(value, f"a number of MiB from 1 to {_MOST_MIB}")
    return value


def _parse_overflow_nums(value: object, spot: _Spot) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        spot.refuse(value, "a number from 1 on, or -1 to never stop")
    return value


def _is_set(value: object) -> bool:
    """Tell a value from a field that is left open: null, or the empty text of a template."""
    return value is not None and not (isinstance(value, str) and not value)


def _holds(numbers: tuple[int, ...], number: int) -> bool:
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number


def _one_of(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _show(value: object) -> str:
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = shorten.maxlong = 60
    shorten.maxlevel = 2
    try:
        return " ".join(shorten.repr(value).split())
    except ValueError:  # an int with more digits than Python is willing to print
        return "a huge number"


# Fields -------------------------------------------------------------------------------------------

_LARGEST = 10**9
_MOST_NUMBERS = 1_000_001  # "0-1000000", the widest range of the older tools
_MOST_FIELDS = 1000
_MOST_MIB = 1 << 20  # a tebibyte
_RANGE = re.compile(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?")
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # the others stand for bytes of a name
_STATISTICS = (
    *("max", "min", "mean", "avg", "l2norm", "md5", "hash", "count", "nan count", "zero count"),
    *(f"{sign} {kind} count" for sign in ("negative", "positive") for kind in ("zero", "inf")),
)

_Parsers = dict[str, Callable[[object, _Spot], object]]

_GENERAL: _Parsers = {
    "dump_path": _parse_path,
    "level": _parse_choice(*get_args(Level)),
    "rank": _parse_numbers,
    "step": _parse_numbers,
    "enable_dataloader": _parse_flag,
    "dump_enable": _parse_flag,
    "api_list": _parse_path,
    "add_apis": _parse_apis,
    "skip_apis": _parse_apis,
}
_CAPTURE: _Parsers = {
    "scope": _parse_scope,
    "list": _parse_names,
    "tensor_list": _parse_names,
    "data_mode": _parse_data_mode,
    "summary_mode": _parse_summary_mode,
    "file_format": _parse_file_format,
    "memory_budget": _parse_memory_budget,
    "overflow_nums": _parse_overflow_nums,
}
_PRECHECK: _Parsers = {
    "white_list": _parse_names,
    "black_list": _parse_names,
    "error_data_path": _parse_path,
}
_HOMES: dict[str, Iterable[str]] = {
    "the top level": {*_GENERAL, "task"},
    "the block of the task, such as 'statistics'": _CAPTURE,
    "the block 'run_ut'": _PRECHECK,
}

# A task that a file may name: the task that runs, the blocks that may hold its settings, a notice.
_INSTEAD = "has no counterpart here; 'statistics' is captured instead"
_TASKS: dict[str, tuple[Task, tuple[str, ...], str]] = {
    "statistics": ("statistics", ("statistics",), ""),
    "tensor": ("tensor", ("tensor",), ""),
    "overflow_check": ("overflow_check", ("overflow_check", "nan_check"), ""),
    "structure": ("structure", ("structure",), ""),
    "run_ut": ("run_ut", ("run_ut", "acc_check"), ""),
    "acc_check": ("run_ut", ("acc_check", "run_ut"), ""),
    "nan_check": ("overflow_check", ("nan_check", "overflow_check"), "runs as 'overflow_check'"),
    "free_benchmark": ("statistics", ("statistics",), _INSTEAD),
    "grad_probe": ("statistics", ("statistics",), _INSTEAD),
    "exception_dump": ("statistics", ("statistics",), _INSTEAD),
}

# Fields of the older tools without a meaning here: the values that ask for nothing, and the reason.
_ONLINE = "the pre-check does not talk to another machine; it reads a dump"
_SEED = "call seed_all() in the script"
_IGNORED: dict[str, tuple[tuple[object, ...], str]] = {
    "async_dump": ((False,), "the capture never waits for the device"),
    "seed": ((), _SEED),
    "is_deterministic": ((False,), _SEED),
    "precision": (("high", "low"), "statistics are computed in float32 or better"),
    "acl_config": ((), "kernels are captured without a file for the driver"),
    "extra_info": ((True,), "stack.json and construct.json are always written"),
    "risk_level": (("ALL",), "every API is captured; name those to leave out in skip_apis"),
    "check_mode": (("all",), "overflows are found in the values, whatever unit computed them"),
    "device": (("host", "device"), "statistics are computed where the tensor is"),
    "backward_input": (([],), "the backward pass is captured as it runs"),
    "bench_path": ((), "compare the two dumps afterwards"),
    "diff_nums": ((), "compare the two dumps afterwards"),
    "online_run_ut": ((False,), _ONLINE),
    "online_run_ut_recompute": ((False,), _ONLINE),
    "is_online": ((False,), _ONLINE),
    "nfs_path": ((), _ONLINE),
    "host": ((), _ONLINE),
    "port": ((-1,), _ONLINE),
    "rank_list": (([], [0]), _ONLINE),
    "tls_path": (("./",), _ONLINE),
    "real_data": ((False,), "the task 'tensor' keeps the real data"),
    "target_iter": ((), "name the steps in step"),
    "dump_step": ((), "name the steps in step"),
    "jit_compile": ((False,), "it is an option of the pre-check's command"),
    "compile_option": ((), "it is no setting of a capture or a pre-check"),
    "compare_algorithm": ((), "every metric is computed"),
}
