"""The files of an online check: one table, and the data of the operators whose data are kept.

{path}/msprobe_{tag_}rank{N}_{time}/compare_result_rank{N}_{time}.csv
/npu/{operator}_{call}_input.0.npy, …_output.npy
/cpu/{operator}_{call}_output.npy
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorprobe.dtypes import DTYPES, widen
from tensorprobe.metrics.pair import Unavailable, relative_distance
from tensorprobe.online.judging import CheckedOperator, JudgedOutput
from tensorprobe.report.csv_table import GrowingCsv
from tensorprobe.report.online_columns import ONLINE_TITLES
from tensorprobe.report.table import Cell, reporting_trouble
from tensorprobe.report.verdict_text import ACCURACY
from tensorprobe.store.tensor_bytes import npy_pieces, write_whole_file
from tensorprobe.summary.host import to_host
from tensorprobe.system.clean_text import one_line
from tensorprobe.tensor_data import TensorData

__all__ = ["OnlineFiles", "place_of_call"]

_SECONDS_AHEAD = 10
_NUMBERS = (bool, int, float, complex)
_YES = {"pass": "Yes", "warning": "Yes", "error": "No", "SKIP": "None"}


class OnlineFiles:
    """The folder of one check.

    Args:
        path: where the folder is made.
        tag: a part of its name.
        rank: of this process.
        disk_limit: how many bytes of data are kept.

    Attributes:
        folder: the folder.
        table_path: the table.
        kept_bytes: how many bytes of data were kept.
        left_out: of how many calls data were not kept, as the limit was reached.

    Raises:
        ReportError: it cannot be made.
    """

    def __init__(self, path: Path, tag: str | None, rank: int, disk_limit: int) -> None:
        self._disk_limit = disk_limit
        self.kept_bytes = 0
        self.left_out = 0
        self.folder, stamp = _make_folder(path, tag, rank)
        self._stack_texts: dict[int, tuple[Any, str]] = {}
        with reporting_trouble(self.folder):
            for side in ("npu", "cpu"):
                (self.folder / side).mkdir()
        self.table_path = self.folder / f"compare_result_rank{rank}_{stamp}.csv"
        self._table = GrowingCsv(self.table_path, ONLINE_TITLES)

    def add(self, checked: CheckedOperator) -> None:
        """Add the rows of a call.

        Raises:
            ReportError: they cannot be written.
        """
        rows = (self._row(checked, output) for output in checked.outputs)
        # Behind a kernel that computes wrongly the process may not live long.
        self._table.add(rows, at_once=checked.misses)

    def keep_data(self, checked: CheckedOperator) -> None:
        """Keep what a call was given and what both sides made of it, if there is room.

        Raises:
            ReportError: it cannot be written.
        """
        call = checked.call
        files = [
            ("npu", f"{call.name}_input{place}", value)
            for place, value in _values_of(call.args, call.kwargs)
        ]
        for output in checked.outputs:
            name = f"{call.name}_{output.place}"
            sides = (("npu", output.candidate), ("cpu", output.reference))
            files += [(side, name, tensor) for side, tensor in sides if tensor is not None]
        if self.kept_bytes + sum(_size_in_file(value) for *_, value in files) > self._disk_limit:
            self.left_out += 1
            return
        for side, name, value in files:
            self._write(side, name, value)

    def close(self) -> None:
        """Close the table.

        Raises:
            ReportError: its last rows cannot be written.
        """
        self._table.close()

    @property
    def lost_rows(self) -> int:
        """How many rows of the table could not be written."""
        return self._table.lost

    def _write(self, side: str, name: str, value: Any) -> None:
        path = self.folder / side / f"{name}.npy"
        with reporting_trouble(path):
            write_whole_file(path, npy_pieces(_as_numpy_knows(value)))
        self.kept_bytes += _size_in_file(value)

    def _row(self, checked: CheckedOperator, output: JudgedOutput) -> Sequence[Cell]:
        call, judgement = checked.call, output.judgement
        ours, theirs = output.candidate, output.reference
        name = f"{call.name}_{output.place}"
        cells = output.measured.cells
        return (
            name,
            name if theirs is not None else "N/A",
            _dtype_text(ours),
            _dtype_text(theirs),
            _shape_text(ours),
            _shape_text(theirs),
            *output.candidate_statistics,
            *output.reference_statistics,
            cells[0],
            cells[2],
            cells[3],
            ACCURACY[output.measured.verdict],
            self._stack_text(call.stack),
            one_line(" ".join(filter(None, (output.measured.message, judgement.message)))),
            _YES[output.verdict],
            _distance_of(output),
            judgement.limit,
            call.facts.operator,
            "backward" if call.is_backward else "forward",
            call.step,
            place_of_call(call.stack),
        )

    def _stack_text(self, stack: tuple[Any, ...]) -> str:
        """Return a stack as the older tools write it; calls of one place share theirs."""
        known = self._stack_texts.get(id(stack))
        if known is None:
            text = str([str(frame) for frame in stack]) if stack else "N/A"
            # The stack is kept, so that no other one gets its id.
            known = self._stack_texts[id(stack)] = stack, text
        return known[1]


def place_of_call(stack: tuple[Any, ...]) -> str:
    """Return where in the user's code a call was made; empty if that is not known."""
    if not stack:
        return ""
    frame = stack[0]
    return f"{frame.path}:{frame.line} in {frame.function}"


def _make_folder(path: Path, tag: str | None, rank: int) -> tuple[Path, str]:
    now = time.time()
    with reporting_trouble(path):
        path.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        # Another check, begun in the same second, has the name of that; very many have a number.
        ahead = attempt if attempt < _SECONDS_AHEAD else 0
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now + ahead))
        stamp += f"_{attempt}" if attempt >= _SECONDS_AHEAD else ""
        folder = path / f"msprobe_{f'{tag}_' if tag else ''}rank{rank}_{stamp}"
        with reporting_trouble(folder):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
        return folder, stamp
    raise AssertionError("it returns, or a folder cannot be made")


def _values_of(args: Sequence[Any], kwargs: Any) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(args):
        yield from _flat(f".{index}", value)
    for key, value in kwargs.items():
        yield from _flat(f"_{key}", value)


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flat(f"{place}.{index}", item)
    elif isinstance(value, (torch.Tensor, *_NUMBERS)):
        yield place, value


def _as_numpy_knows(value: Any) -> TensorData:
    """Return data in a dtype of numpy's own; bfloat16 and 8-bit floats are all in float32."""
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value, dtype=torch.float64 if type(value) is float else None)
    data = to_host(value)
    if data.dtype.native:
        return data
    name = "torch.complex64" if data.dtype.kind == "complex" else "torch.float32"
    wide = DTYPES[name]
    return TensorData(wide, np.asarray(widen(data.array, data.dtype)).astype(wide.carrier))


def _size_in_file(value: Any) -> int:
    """Return how many bytes a value takes in a `.npy`, which has no halves but its own."""
    if not isinstance(value, torch.Tensor):
        return _HEADER + _WIDEST
    width = value.element_size() if DTYPES[str(value.dtype)].native else _WIDE
    return _HEADER + value.numel() * width


# Of what is before the data, of a number of Python, and of float32 in the place of a narrow float.
_HEADER, _WIDEST, _WIDE = 128, 16, 4


def _dtype_text(tensor: torch.Tensor | None) -> str:
    return "N/A" if tensor is None else str(tensor.dtype)


def _shape_text(tensor: torch.Tensor | None) -> str:
    return "N/A" if tensor is None else str(list(tensor.shape))


def _distance_of(output: JudgedOutput) -> float | None:
    judgement = output.judgement
    if judgement.numbers is not None:
        return judgement.numbers.distance
    if judgement.pair is None:
        return 0.0 if judgement.unequal == 0 else None
    found = relative_distance(judgement.pair)
    return None if isinstance(found, Unavailable) else found
