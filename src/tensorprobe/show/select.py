"""Pick what a person wants to see of a dump: the calls as a tree, or everything about one.

RankDump ─► tree_of: Branches in order of execution, each under its module
         ─► details_of: one call with its stack, and for real data a histogram and first values
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tensorprobe.dtypes import widen
from tensorprobe.errors import DumpError
from tensorprobe.metrics.statistics import ArrayStatistics, count_into_bins, measure_array
from tensorprobe.records import Leaf, TensorValue
from tensorprobe.report.rows import Branch, Details, Histogram, TensorDetails
from tensorprobe.store import RankDump, TensorData

__all__ = ["data_details", "details_of", "name_test", "tree_of"]

MOST_BINS = 20
FIRST_VALUES = 8
# More than this of a stride-0 view would be waiting for one number repeated.
_MOST_ELEMENTS = 1 << 34


def name_test(pattern: str | None) -> Callable[[str], bool]:
    """Return the test that a pattern makes of a call's name.

    A pattern with `*`, `?` or `[` is matched as a whole, ignoring case; another one anywhere in
    the name.

    >>> name_test("ReLU")("Functional.relu.0.forward")
    True
    >>> name_test("relu*")("Functional.relu.0.forward")
    False
    """
    if pattern is None:
        return lambda name: True
    wanted = pattern.lower()
    if any(sign in pattern for sign in "*?["):
        return lambda name: fnmatch.fnmatchcase(name.lower(), wanted)
    return lambda name: wanted in name.lower()


def tree_of(part: RankDump, pattern: str | None = None) -> Iterator[Branch]:
    """Yield the calls in order of execution, each below the module call around it.

    A module is recorded when it ends, after what it contains, but stands above it here. With a
    pattern, the modules around a call that fits are shown without their values.
    """
    fits = name_test(pattern)
    children: dict[str | None, dict[str, None]] = {}
    shown = [name for name in part.names if fits(name)]
    placed: set[str] = set()
    for name in shown:
        current: str | None = name
        while current is not None and current not in placed:
            placed.add(current)
            parent = part.parent(current)
            children.setdefault(parent, {})[current] = None
            current = parent
    has_values = set(shown)
    visited: set[str] = set()
    # What no root leads to, in a damaged tree whose parents go in a circle, follows at the end.
    for start in (*children.get(None, {}), *placed):
        pending = [(start, 0)]
        while pending:
            name, depth = pending.pop()
            if name in visited:
                continue
            visited.add(name)
            is_call = name in has_values
            yield Branch(name, depth, part.parent(name), part.try_call(name) if is_call else None)
            pending.extend((child, depth + 1) for child in reversed(children.get(name, {})))


def details_of(part: RankDump, name: str) -> Details:
    """Gather everything about one call: its values, its place, its stack, its data.

    Raises:
        DumpError: there is no such call.
    """
    call = part.call(name)
    return Details(
        call,
        part.parent(name),
        tuple(other for other in part.names if part.parent(other) == name),
        part.stack(name),
        tuple(
            _tensor_details(part, leaf)
            for leaf in call.leaves()
            if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None
        ),
    )


def _tensor_details(part: RankDump, leaf: Leaf) -> TensorDetails:
    assert isinstance(leaf.value, TensorValue)
    try:
        data = part.load(leaf.value)
    except DumpError as err:
        return TensorDetails(leaf, problem=str(err))
    if data.array.size > _MOST_ELEMENTS:
        return TensorDetails(leaf, problem=f"{data.array.size} elements are too many to look at")
    return data_details(leaf, data, measure_array(data.array, data.dtype))


def data_details(leaf: Leaf, data: TensorData, statistics: ArrayStatistics) -> TensorDetails:
    """Gather what the data of one value show."""
    return TensorDetails(
        leaf, asdict(statistics), _histogram(data, statistics), _first_values(data)
    )


def _histogram(data: TensorData, statistics: ArrayStatistics) -> Histogram | None:
    low, high = statistics.finite_min, statistics.finite_max
    if low is None or high is None:
        return None
    if low == high:
        finite = statistics.count - statistics.nans
        finite -= statistics.positive_infinities + statistics.negative_infinities
        return Histogram(float(low), float(high), (finite,))
    # A handful of elements in twenty bins is a comb, not a shape.
    bins = max(4, min(MOST_BINS, statistics.count // 4))
    counts = count_into_bins(data.array, data.dtype, float(low), float(high), bins)
    return Histogram(float(low), float(high), tuple(int(count) for count in counts))


def _first_values(data: TensorData) -> tuple[Any, ...]:
    # Through indices: flattening would copy the whole of a strided tensor.
    array = data.array
    count = min(FIRST_VALUES, array.size)
    if not count:
        return ()
    places = np.unravel_index(np.arange(count), array.shape) if array.ndim else ()
    return tuple(widen(np.atleast_1d(array[places]), data.dtype).tolist())
