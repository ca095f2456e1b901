"""Measure many pairs with all cores, in order, with bounded memory.

    pairs ─► a window of a few ─► threads: load both sides, measure ─► results in the order of pairs

Only the pairs in the window are loaded, and mapped files give their pages back while they are read,
so that memory does not grow with the number of pairs or with their size.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from tensorprobe.errors import TensorprobeError
from tensorprobe.metrics.pair import measure_pair
from tensorprobe.metrics.pair_numbers import PairNumbers, equal_pair
from tensorprobe.system.cores import count_cores
from tensorprobe.system.thread_pool import Pending, ThreadPool
from tensorprobe.tensor_data import TensorData

__all__ = ["MeasuredPair", "PairSource", "is_same_file", "measure_pairs"]

# A pair of this size is worth more than one thread, whatever the others do.
_SHARE_BYTES = 128 << 20
# Handing over work and waking up whoever waits for it takes as long as measuring a small pair.
_PAIRS_PER_TASK = 16
# How much may be loaded before it is measured; a tensor that had to be copied takes memory.
_LOADED_BYTES = 64 << 20


class PairSource(NamedTuple):
    """Where both sides of one pair come from.

    Attributes:
        key: what the caller knows the pair by.
        load_candidate: returns the tensor under test or raises a TensorprobeError.
        load_reference: likewise for the tensor that is trusted.
        equal_count: the number of elements, when both sides are known to be the same data of the
            same dtype (the same file, equal checksums) and need not be read; else None.
    """

    key: Any
    load_candidate: Callable[[], TensorData]
    load_reference: Callable[[], TensorData]
    equal_count: int | None = None


class MeasuredPair(NamedTuple):
    """What became of one pair.

    Attributes:
        key: of its source.
        numbers: None when a side could not be loaded or the shapes differ.
        shapes: of both sides, None when they were not loaded.
        problem: why a side could not be loaded.
        side: which one, "candidate" or "reference"; "" without a problem.
        read_bytes: how much was read of both sides.
    """

    key: Any
    numbers: PairNumbers | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    problem: TensorprobeError | None = None
    side: str = ""
    read_bytes: int = 0


def measure_pairs(pairs: Iterable[PairSource], *, threads: int = 0) -> Iterator[MeasuredPair]:
    """Measure pairs and yield the results in the same order.

    A pair that cannot be loaded costs nothing but itself.

    Args:
        pairs: taken one after the other, as results are asked for.
        threads: how many threads may work; 0 for all cores of this process.

    >>> import numpy as np
    >>> from tensorprobe.dtypes import DTYPES
    >>> ones = lambda: TensorData(DTYPES["torch.int64"], np.ones(3, np.int64))
    >>> [result] = measure_pairs([PairSource("fc1", ones, ones)])
    >>> result.key, result.numbers.unequal, result.read_bytes
    ('fc1', 0, 48)
    """
    workers = threads or count_cores()
    if workers <= 1:
        for pair in pairs:
            yield _measure(_load(pair), 1)
        return
    window: deque[Pending[list[MeasuredPair]]] = deque()
    rest = iter(pairs)
    with ThreadPool(workers) as pool:
        while some := list(islice(rest, _PAIRS_PER_TASK)):
            window.append(pool.submit(_measure_some, some, workers))
            # A few more than work at the moment, so that nobody waits for the slowest.
            if len(window) > workers:
                yield from window.popleft().result()
        while window:
            yield from window.popleft().result()


def is_same_file(candidate: str | os.PathLike[str], reference: str | os.PathLike[str]) -> bool:
    """Return whether two names lead to one file, as hard links do; a missing file is none.

    >>> is_same_file("/nowhere/a.pt", "/nowhere/a.pt")
    False
    """
    try:
        return os.path.samestat(os.stat(candidate), os.stat(reference))
    except (OSError, ValueError):
        # Whoever loads it says what is wrong with it.
        return False


def _measure_some(pairs: list[PairSource], workers: int) -> list[MeasuredPair]:
    """Load some pairs, then measure them: each drives the other out of the processor's cache."""
    results: list[MeasuredPair] = []
    loaded: list[_Loaded | MeasuredPair] = []
    size = 0
    for number, pair in enumerate(pairs, start=1):
        both = _load(pair)
        loaded.append(both)
        size += both.read_bytes
        if size >= _LOADED_BYTES or number == len(pairs):
            # Whatever is measured is let go at once.
            loaded.reverse()
            while loaded:
                results.append(_measure(loaded.pop(), workers))
            size = 0
    return results


class _Loaded(NamedTuple):
    """Both sides of a pair of one shape."""

    key: Any
    candidate: TensorData
    reference: TensorData
    read_bytes: int


def _load(pair: PairSource) -> _Loaded | MeasuredPair:
    # The errors of a single element depend on its value: inf - inf is NaN.
    if pair.equal_count is not None and pair.equal_count != 1:
        return MeasuredPair(pair.key, equal_pair(pair.equal_count))
    side = "candidate"
    try:
        candidate = pair.load_candidate()
        if pair.equal_count is not None:
            reference = candidate
        else:
            side = "reference"
            reference = pair.load_reference()
    except TensorprobeError as err:
        return MeasuredPair(pair.key, None, problem=err, side=side)
    if candidate.shape != reference.shape:
        return MeasuredPair(pair.key, None, (candidate.shape, reference.shape))
    return _Loaded(pair.key, candidate, reference, candidate.nbytes + reference.nbytes)


def _measure(pair: _Loaded | MeasuredPair, workers: int) -> MeasuredPair:
    if isinstance(pair, MeasuredPair):
        return pair
    threads = workers if pair.read_bytes >= _SHARE_BYTES else 1
    numbers = measure_pair(pair.candidate, pair.reference, threads=threads)
    shapes = pair.candidate.shape, pair.reference.shape
    return MeasuredPair(pair.key, numbers, shapes, read_bytes=pair.read_bytes)
