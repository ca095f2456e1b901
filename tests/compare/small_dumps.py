"""Small dumps made call by call, with data if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.compare import ComparisonResult, compare
from tensorprobe.dtypes import DTYPES, dtype_of_numpy
from tensorprobe.records import CallRecord, DumpInfo, Frame, TensorValue
from tensorprobe.store import DumpWriter, TensorData

Rows = list[dict[str, Any]]


def tensor(*numbers: float, shape: tuple[int, ...] = (2, 2), dtype: str = "float32") -> TensorValue:
    """A tensor with statistics: max, min, mean and norm, as far as they are given."""
    values = [*numbers, *[numbers[-1]] * 4][:4] if numbers else [None] * 4
    return TensorValue(f"torch.{dtype}", shape, *values, requires_grad=True)


def call(name: str, inputs: Sequence[Any] = (), outputs: Sequence[Any] = ()) -> CallRecord:
    return CallRecord(name, inputs=tuple(inputs), outputs=tuple(outputs))


def write_dump(
    folder: Path, calls: Sequence[CallRecord], *, stack: Sequence[Frame] = (), **info: Any
) -> Path:
    """Write a dump of these calls; returns its folder."""
    with DumpWriter(folder, DumpInfo(**info)) as writer:
        for record in calls:
            assert writer.write(record, stack=tuple(stack))
    return folder


def write_data(folder: Path, calls: dict[str, dict[str, Any]], **info: Any) -> Path:
    """Write a dump with real data: arrays by call and section (`input` or `output`)."""
    with DumpWriter(folder, DumpInfo(task="tensor", **info)) as writer:
        for name, sections in calls.items():
            record = CallRecord(name)
            for section, arrays in sections.items():
                values = []
                for index, array in enumerate(arrays):
                    data = as_data(array)
                    saved = writer.save_tensor(f"{name}.{section}.{index}", data)
                    value = TensorValue(data.dtype.name, data.shape, data_name=saved)
                    values.append(replace(value, max=float(np.max(data.values(), initial=0))))
                field = "inputs" if section == "input" else "outputs"
                record = replace(record, **{field: tuple(values)})
            assert writer.write(record)
    return folder


def as_data(array: Any) -> TensorData:
    if isinstance(array, TensorData):
        return array
    array = np.asarray(array)
    return TensorData(dtype_of_numpy(array.dtype) or DTYPES["torch.float32"], array)


def compared(candidate: Path, reference: Path, folder: Path, **options: Any) -> Rows:
    """Compare two dumps and return the rows of the (single) table."""
    _, rows = compare_rows(candidate, reference, folder, **options)
    return rows


def compare_rows(
    candidate: Path, reference: Path, folder: Path, **options: Any
) -> tuple[ComparisonResult, Rows]:
    import json

    result = compare(candidate, reference, folder, formats=["json"], **options)
    (file,) = (file for file in result.files if file.name.startswith("compare_result"))
    return result, json.loads(file.read_text())
