"""Look into one tensor file, alone or against another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tensorprobe.dtypes import widen
from tensorprobe.errors import ConfigError
from tensorprobe.metrics.pair import (
    Unavailable,
    cosine,
    error_ratio,
    euclidean_distance,
    max_absolute_error,
    max_relative_error,
    measure_pair,
)
from tensorprobe.metrics.statistics import measure_array
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.report.console import QuietConsole
from tensorprobe.report.dump_json import details_json
from tensorprobe.report.dump_text import print_details
from tensorprobe.report.lines import print_line
from tensorprobe.report.rows import Details
from tensorprobe.report.value_text import json_number, number_text, shape_text
from tensorprobe.show.select import data_details
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.tensor_data import TensorData

__all__ = ["is_tensor_file", "show_tensor"]

_SUFFIXES = (".npy", ".pt")


def is_tensor_file(path: str) -> bool:
    """Whether a path is that of a file with one tensor, by its name."""
    return Path(path).suffix in _SUFFIXES and not Path(path).is_dir()


def show_tensor(path: str, against: str | None = None, *, as_json: bool = False) -> int:
    """Print what a tensor holds and, with another, how far it is from that.

    Returns:
        The exit code.

    Raises:
        DumpError: a file cannot be read, or holds no tensor.
        ConfigError: the two have not the same number of elements.
    """
    tensor = load_tensor(path)
    _print(path, tensor, as_json=as_json)
    if against is not None:
        other = load_tensor(against)
        _print(against, other, as_json=as_json)
        _print_difference(path, tensor, against, other, as_json=as_json)
    return 0


def _print(path: str, data: TensorData, *, as_json: bool) -> None:
    statistics = measure_array(data.array, data.dtype)
    value = TensorValue(
        data.dtype.name,
        data.array.shape,
        max=statistics.max,
        min=statistics.min,
        mean=statistics.mean,
        norm=statistics.norm,
    )
    record = CallRecord(path, saved=(value,))
    (leaf,) = record.leaves()
    details = Details(record, None, (), (), (data_details(leaf, data, statistics),))
    if as_json:
        print_line(details_json(path, details))
    else:
        print_details(QuietConsole(), details)


def _print_difference(
    path: str, tensor: TensorData, against: str, other: TensorData, *, as_json: bool
) -> None:
    if tensor.array.size != other.array.size:
        raise ConfigError(
            f"{path} and {against} cannot be compared: their shapes are "
            f"{shape_text(tensor.array.shape)} and {shape_text(other.array.shape)}"
        )
    numbers = measure_pair(tensor, other)
    metrics = {
        "cosine": cosine(numbers),
        "distance": euclidean_distance(numbers),
        "max_abs_error": max_absolute_error(numbers),
        "max_relative_error": max_relative_error(numbers),
        "one_thousandth": error_ratio(numbers, 1e-3),
        "five_thousandths": error_ratio(numbers, 5e-3),
    }
    if as_json:
        row = {key: _json(value) for key, value in metrics.items()}
        shapes = [list(side.array.shape) for side in (tensor, other)]
        told = {"kind": "difference", "unequal": numbers.unequal, "shapes": shapes}
        print_line(json.dumps(told | row))
        return
    print_line()
    shown = " and ".join(shape_text(side.array.shape) for side in (tensor, other))
    reshaped = "" if tensor.array.shape == other.array.shape else f"; the shapes do: {shown}"
    print_line(f"difference  {numbers.unequal} of {numbers.count} elements differ{reshaped}")
    for key, value in metrics.items():
        shown = value.value if isinstance(value, Unavailable) else number_text(value)
        print_line(f"  {key.replace('_', ' '):18}  {shown}")
    place = numbers.max_abs_index
    if place >= 0:
        mine, theirs = (_element(side, place) for side in (tensor, other))
        print_line(f"  furthest apart      element {place}: {mine} and {theirs}")


def _element(data: TensorData, place: int) -> object:
    # Flattening would copy the whole of a strided tensor.
    element = data.array[np.unravel_index(place, data.array.shape)]
    return widen(np.atleast_1d(element), data.dtype)[0]


def _json(value: float | Unavailable) -> object:
    return {"unavailable": value.value} if isinstance(value, Unavailable) else json_number(value)
