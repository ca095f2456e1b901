"""What is to be compared: two dumps, given by their paths or by a compare.json.

A compare.json may also come as a dict: it is what the functions of the older tools took.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError, DumpError
from tensorprobe.store.locate import data_folders_of
from tensorprobe.system.text_file import read_json, read_yaml, show_path

__all__ = [
    "Inputs",
    "is_compare_json",
    "name_inputs",
    "read_inputs",
]

# Each field under the names that it had over the years, the newest first.
_FIELDS = {
    "candidate": ("npu_path", "npu_json_path", "npu_pkl_path"),
    "reference": ("bench_path", "bench_json_path", "bench_pkl_path"),
    "stack": ("stack_path", "stack_json_path"),
    "log": ("is_print_compare_log",),
}
# Where older tools were told that a dump's data are; here they are found beside it.
_DATA_FIELDS = {"candidate": "npu_dump_data_dir", "reference": "bench_dump_data_dir"}

_LARGEST_COMPARE_JSON = 1 << 20
_ALONE = "is one dump alone; give the trusted one behind it, or a compare.json"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Two dumps to compare, and what a compare.json says about how.

    Attributes:
        candidate: the run under test.
        reference: the trusted run.
        stack: the candidate's stack file, if it was named; then stacks are shown on request only.
        prints_log: whether every call gets a line on the screen.
        is_compare_json: whether the two were named by a compare.json.
    """

    candidate: Path
    reference: Path
    stack: Path | None = None
    prints_log: bool = False
    is_compare_json: bool = False

    def shows_stacks(self, is_asked: bool | None) -> bool | None:
        """Return whether stacks are shown; None: if there are any.

        A compare.json is asked for its stacks in vain, unless it names their file: those of whole
        folders, and those that nobody named, are found and shown by themselves.

        >>> named = Inputs(Path("a.json"), Path("b.json"), Path("stack.json"), is_compare_json=True)
        >>> named.shows_stacks(None), named.shows_stacks(True)
        (False, True)
        """
        if not self.is_compare_json or is_asked is False:
            return is_asked
        if self.stack is None or self.candidate.is_dir():
            return None
        return bool(is_asked)


def name_inputs(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None,
) -> Inputs:
    """Return the two dumps that are meant: given by both paths, or by a compare.json alone.

    Raises:
        ConfigError: as `read_inputs`, or a reference is given beside the fields of a compare.json,
            or a path is empty.
    """
    if reference is None:
        return read_inputs(candidate)
    if isinstance(candidate, Mapping):
        raise ConfigError("the fields of a compare.json name both runs; leave the reference out")
    return Inputs(_as_path(candidate), _as_path(reference))


def _as_path(given: str | os.PathLike[str]) -> Path:
    # The path of nothing is the folder that we are in: a variable of the shell that is not set.
    if not os.fspath(given):
        raise ConfigError("the path of a dump is empty; give its file or folder")
    return Path(given)


def read_inputs(source: str | os.PathLike[str] | Mapping[str, Any]) -> Inputs:
    """Read a compare.json; its paths are meant from here or, failing that, from beside it.

    Args:
        source: the file's path, or what it would hold.

    Raises:
        ConfigError: it cannot be read, or lacks a path, or a field holds something else, or a file
            that it names is not there.
    """
    if isinstance(source, Mapping):
        return _inputs_of(source, where="the inputs", beside=Path())
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"what is to be compared is {source!r}; wanted a dict with npu_path and bench_path, or "
            "the path of a compare.json"
        )
    path = source
    where = show_path(path)
    if Path(path).is_dir():
        raise ConfigError(f"{where} {_ALONE}")
    try:
        raw = _read_fields(path)
    except ConfigError as err:
        if not Path(path).is_file() or Path(path).suffix == ".json":
            raise
        raise ConfigError(f"{where} is no compare.json; if it is a dump it {_ALONE}") from err
    if isinstance(raw, dict) and "data" in raw and not raw.keys() & set(_FIELDS["candidate"]):
        raise ConfigError(f"{where} {_ALONE}")
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: wanted an object with npu_path and bench_path")
    return _inputs_of(raw, where=where, beside=Path(path).parent)


def _read_fields(path: str | os.PathLike[str]) -> object:
    try:
        return read_json(path, error=ConfigError)
    except ConfigError as err:
        # The manual's own example has comments, which YAML knows and JSON does not.
        if not _may_be_compare_json(Path(path)):
            raise
        try:
            raw = read_yaml(path, error=ConfigError)
        except ConfigError:
            raise err from None
        if not isinstance(raw, dict):
            raise
        return raw


def is_compare_json(path: Path) -> bool:
    """Whether a file names two dumps."""
    if not _may_be_compare_json(path):
        return False
    try:
        raw = _read_fields(path)
    except ConfigError:
        return False
    return isinstance(raw, dict) and bool(raw.keys() & set(_FIELDS["candidate"]))


def _may_be_compare_json(path: Path) -> bool:
    """Whether a file is there and not so large that it would take long to look into in vain."""
    return path.is_file() and path.stat().st_size <= _LARGEST_COMPARE_JSON


def _inputs_of(raw: Mapping[str, Any], *, where: str, beside: Path) -> Inputs:
    known = {*(name for names in _FIELDS.values() for name in names), *_DATA_FIELDS.values()}
    for key in raw:
        if key not in known:
            raise ConfigError(f"{where}: the field {key!r} is not known; known are {sorted(known)}")
    candidate, reference = (
        _path(raw, field, where, beside, required=True) for field in ("candidate", "reference")
    )
    stack = _path(raw, "stack", where, beside, required=False)
    log = raw.get("is_print_compare_log", True)
    if not isinstance(log, bool):
        raise ConfigError(f"{where}: is_print_compare_log is {log!r}, wanted true or false")
    if candidate is None or reference is None:
        raise ConfigError(f"{where}: both npu_path and bench_path are needed")
    if stack is not None and not stack.is_file():
        what = "is no file" if stack.exists() else "does not exist"
        raise ConfigError(
            f"{where}: the stack file {show_path(stack)} {what}; check it, or leave it out: "
            "a stack.json beside the dump is found by itself"
        )
    for field, dump in (("candidate", candidate), ("reference", reference)):
        _check_data_folder(raw, _DATA_FIELDS[field], dump, where, beside)
    return Inputs(candidate, reference, stack, prints_log=log, is_compare_json=True)


def _check_data_folder(
    raw: Mapping[str, Any], key: str, dump: Path, where: str, beside: Path
) -> None:
    """Refuse a folder of data that is not the one which is read: its data would not count."""
    if not raw.get(key):
        return
    folder = _given(raw, key, where, beside)
    try:
        read = data_folders_of(dump)
    except (DumpError, OSError):
        # Whoever opens the dump says what is wrong with it.
        return
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ConfigError(
            f"{where}: {key} is {show_path(folder)}, which {what}; leave {key} out to compare "
            "what the dump itself holds, or put the data there"
        )
    if os.path.realpath(folder) in map(os.path.realpath, read):
        return
    place = show_path(read[0]) if len(read) == 1 else "the folders of its ranks below it"
    raise ConfigError(
        f"{where}: {key} is {show_path(folder)}, but the tensors of {show_path(dump)} are read "
        f"from {place}; move the folder there, or leave {key} out"
    )


def _path(
    raw: Mapping[str, Any], field: str, where: str, beside: Path, *, required: bool
) -> Path | None:
    key = next((name for name in _FIELDS[field] if raw.get(name)), None)
    if key is None:
        if required:
            newest, *older = _FIELDS[field]
            raise ConfigError(
                f"{where}: {newest} (or {', '.join(older)}) is missing; give a dump.json or a step "
                "folder"
            )
        return None
    return _given(raw, key, where, beside)


def _given(raw: Mapping[str, Any], key: str, where: str, beside: Path) -> Path:
    value = raw[key]
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{where}: {key} is {value!r}, wanted a path")
    path = Path(value)
    try:
        is_beside = not path.exists() and (beside / path).exists()
    except (OSError, ValueError) as err:
        raise ConfigError(f"{where}: {key} is no path that can exist: {err}") from err
    return beside / path if is_beside else path
