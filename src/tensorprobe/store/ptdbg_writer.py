"""Write a finished dump of ours as ptdbg_ascend would have written it.

    a rank's dump ─► {stem}.pkl             text: one JSON array per value, and one per call stack
                  └► {stem}/{value}.npy     the real data, where there are any

The names are those with underscores. Arrays that are `.npy` files already get a second name and are
not copied; what numpy has no type for is widened to float32, as the tool did. Nothing appears under
its final name before all is there.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.dtypes import dtype_named, dtype_of_numpy
from tensorprobe.errors import DumpError
from tensorprobe.names import ApiCall, ModuleCall, parse_call, ptdbg_name
from tensorprobe.records import CallRecord, Frame, ListValue, Number, ScalarValue, TensorValue
from tensorprobe.store.dump import RankDump
from tensorprobe.store.file_names import file_name_of
from tensorprobe.store.second_name import give_second_name
from tensorprobe.store.tensor_bytes import npy_pieces, write_whole_file
from tensorprobe.system.new_file import new_file
from tensorprobe.tensor_data import TensorData

__all__ = ["PtdbgForm", "write_ptdbg"]

# What the tool writes for a number that it does not compute.
_NOT_COMPUTED = "Nan"
_SCALARS: dict[str, type[bool] | type[int] | type[float]] = {
    "bool": bool,
    "int": int,
    "float": float,
}
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class PtdbgForm:
    """What the files are called, and which lines they have.

    Attributes:
        stem: of the pkl and of the folder with the arrays, `api_stack_dump`.
        with_values: whether values have lines.
        with_stacks: whether call stacks have lines.
        floats_alone: whether the only values are floating tensors with dimensions and elements.
    """

    stem: str
    with_values: bool = True
    with_stacks: bool = False
    floats_alone: bool = False


def write_ptdbg(
    part: RankDump, folder: Path, form: PtdbgForm, *, names: Sequence[str] | None = None
) -> Path | None:
    """Write calls of a dump in the layout of ptdbg_ascend; an older dump of the stem is replaced.

    Args:
        part: the dump; it stays as it is.
        folder: the rank folder, which is there.
        form: what to write.
        names: the calls; by default all.

    Returns:
        The pkl; None if nothing of the calls has a line, so that nothing is written.

    Raises:
        OSError: something cannot be written.
        DumpError: the data of a tensor cannot be read.
    """
    pkl, data = folder / f"{form.stem}.pkl", folder / form.stem
    lines = 0
    with _hidden_folder(folder) as hidden:
        arrays = _Arrays(part, hidden)
        try:
            with new_file(pkl) as descriptor, open(descriptor, "wb", closefd=False) as file:
                for line in _lines(part, form, names, arrays):
                    file.write(json.dumps(line).encode() + b"\n")
                    lines += 1
                if not lines:
                    raise _NoLinesError
                file.flush()
                # Its data go last and come first: a pkl that is there belongs to them.
                pkl.unlink(missing_ok=True)
                _remove(data)
                if arrays.count:
                    os.rename(hidden, data)
        except _NoLinesError:
            return None
    return pkl


class _NoLinesError(Exception):
    """There is nothing to write."""


@contextmanager
def _hidden_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder; it is removed unless it has got another name."""
    for number in itertools.count():
        hidden = folder / f".tmp-{os.getpid()}-data-{number}"
        try:
            hidden.mkdir()
            break
        except FileExistsError:
            if number == _MOST_ATTEMPTS:
                raise
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _remove(data: Path) -> None:
    """Remove the data of an older dump; a link goes, and what it leads to stays."""
    if data.is_symlink() or data.is_file():
        data.unlink()
    elif data.exists():
        shutil.rmtree(data)


def _lines(
    part: RankDump, form: PtdbgForm, names: Sequence[str] | None, arrays: _Arrays
) -> Iterator[list[Any]]:
    for name in part.names if names is None else names:
        parsed = parse_call(name)
        # The gradients of parameters had no place in its dumps, nor had the model as a whole.
        is_model = isinstance(parsed, ModuleCall) and not parsed.path
        if is_model or not isinstance(parsed, (ApiCall, ModuleCall)):
            continue
        call = part.try_call(name)
        if call is None:
            continue
        text = ptdbg_name(parsed)
        for key, value in _values(text, call) if form.with_values else ():
            line = _tensor_line(key, value) if isinstance(value, TensorValue) else None
            if isinstance(value, ScalarValue):
                line = _scalar_line(key, value)
            if line is not None and not (form.floats_alone and not _is_usual(value)):
                arrays.add(key, value)
                yield line
        if form.with_stacks and (stack := part.stack(name)):
            yield [f"{text}_stack_info", [_frame(frame) for frame in stack]]


def _values(text: str, call: CallRecord) -> Iterator[tuple[str, TensorValue | ScalarValue]]:
    """Yield what the tool records of a call: tensors and numbers among arguments and results."""
    outputs = call.outputs or ()
    # Of a forward call that returns one value, that has no number.
    is_single = (
        "_forward" in text[-8:] and len(outputs) == 1 and not isinstance(outputs[0], ListValue)
    )
    # What was given by name stood behind the others, without its name.
    inputs = (*(call.inputs or ()), *(call.kwargs or {}).values())
    for leaf in CallRecord(call.name, inputs=inputs, outputs=call.outputs).leaves():
        # A number stands under each level of a list; a key of a dict has no place in a name.
        if leaf.section not in ("input", "output") or not all(map(str.isdecimal, leaf.path)):
            continue
        if isinstance(leaf.value, (TensorValue, ScalarValue)) and leaf.peer_op is None:
            has_path = leaf.section == "input" or not is_single
            path = f".{'.'.join(leaf.path)}" if has_path else ""
            yield f"{text}_{leaf.section}{path}", leaf.value


def _is_usual(value: TensorValue | ScalarValue) -> bool:
    """Whether a value is a floating tensor with dimensions and elements."""
    if not isinstance(value, TensorValue) or not value.shape or 0 in value.shape:
        return False
    dtype = dtype_named(value.dtype)
    return dtype is not None and dtype.kind == "float"


def _tensor_line(key: str, value: TensorValue) -> list[Any]:
    if value.checksum is not None:
        return [key, 0, value.checksum, value.dtype, list(value.shape), []]
    has_norm = _is_usual(value)
    numbers = [_number(value, entry) for entry in (value.max, value.min, value.mean)]
    norm = _number(value, value.norm) if has_norm else _NOT_COMPUTED
    return [key, 0, [], value.dtype, list(value.shape), [*numbers, norm]]


def _number(value: TensorValue, number: Number | None) -> float | list[Any]:
    is_computed = value.dtype != "torch.bool" and 0 not in value.shape
    return float(number) if is_computed and number is not None else []


def _scalar_line(key: str, value: ScalarValue) -> list[Any] | None:
    if value.type_name not in _SCALARS or type(value.value) is not _SCALARS[value.type_name]:
        # The tool passes over texts, and over numbers of numpy.
        return None
    return [key, 0, [], f"<class '{value.type_name}'>", "[]", [value.value] * 4]


def _frame(frame: Frame) -> list[str]:
    return [frame.path, str(frame.line), frame.function, frame.source]


class _Arrays:
    """The `.npy` files of a dump's values.

    Args:
        part: the dump; without real data nothing is written.
        folder: where they go.

    Attributes:
        count: how many there are.
    """

    def __init__(self, part: RankDump, folder: Path) -> None:
        self._part = part
        self._folder = folder
        self._has_data = part.info.task in ("tensor", "overflow_check")
        self.count = 0

    def add(self, key: str, value: TensorValue | ScalarValue) -> None:
        if not self._has_data:
            return
        path = self._folder / file_name_of(key, ".npy")
        if isinstance(value, ScalarValue):
            array = np.asarray(value.value)
            dtype = dtype_of_numpy(array.dtype)
            if dtype is None:
                # A number with more digits than any type of numpy has.
                return
            write_whole_file(path, npy_pieces(TensorData(dtype, array)))
        elif value.data_name is None:
            return
        elif value.data_name.endswith(".npy"):
            give_second_name(self._part.data_file(value.data_name), path)
        else:
            write_whole_file(path, npy_pieces(_as_numpy_has_it(self._part.load(value))))
        self.count += 1


def _as_numpy_has_it(data: TensorData) -> TensorData:
    array = data.values()
    dtype = dtype_of_numpy(array.dtype)
    if dtype is None:
        raise DumpError(f"numpy has no type for {data.dtype.name}")
    return TensorData(dtype, array)
