"""Read two arrays of any strides side by side: in the order of memory where both have the same.

    two arrays ─► see repeated elements once ─► turn axes into the order of memory ─► pieces

Two arrays that lie in memory in the same order become flat views; nothing is copied. The elements
of others are copied piece by piece, by whoever takes a piece.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["PairLayout", "align_pair", "cut_pieces", "find_mapping", "find_place", "release_pages"]

Array = npt.NDArray[Any]


class PairLayout(NamedTuple):
    """Two arrays that are read in C order, and how they came about.

    Attributes:
        candidate: flat where both sides could be, else a view with turned axes.
        reference: likewise.
        repeats: how often each of these elements is seen in the original.
        shape: the original shape.
        axes: the original axis of each turned one.
        flipped: which original axes are read backwards.
        turned: the shape after turning, with 1 for repeated axes.
    """

    candidate: Array
    reference: Array
    repeats: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    flipped: tuple[bool, ...]
    turned: tuple[int, ...]


def align_pair(candidate: Array, reference: Array) -> PairLayout:
    """Turn both arrays alike, so that they are read in the order of memory where that is one.

    Arrays of different shapes are read in C order; they must have the same number of elements.

    >>> rows = np.zeros((3, 4)).T
    >>> align_pair(rows, np.ones((3, 4)).T).candidate.shape
    (12,)
    >>> align_pair(rows, np.ones((4, 3))).candidate.shape
    (3, 4)
    """
    count = candidate.size
    if candidate.flags.c_contiguous and reference.flags.c_contiguous:
        flat = candidate.reshape(-1), reference.reshape(-1)
        return PairLayout(*flat, 1, (count,), (0,), (False,), (count,))
    if candidate.shape != reference.shape:
        return PairLayout(candidate, reference, 1, (count,), (0,), (False,), (count,))
    strides = list(zip(candidate.strides, reference.strides, strict=True))
    once = tuple(slice(None) if any(pair) else slice(0, 1) for pair in strides)
    flipped = tuple(max(pair) <= 0 and any(pair) for pair in strides)
    steps = tuple(slice(None, None, -1 if back else 1) for back in flipped)
    axes = tuple(sorted(range(candidate.ndim), key=lambda axis: [-abs(x) for x in strides[axis]]))
    sides = [side[once][steps].transpose(axes) for side in (candidate, reference)]
    turned, seen = sides[0].shape, sides[0].size
    if all(side.flags.c_contiguous for side in sides):
        sides = [side.reshape(-1) for side in sides]
    repeats = count // seen if seen else 1
    return PairLayout(sides[0], sides[1], repeats, candidate.shape, axes, flipped, turned)


def find_place(layout: PairLayout, index: int) -> int:
    """Return the place in the original, in C order, of the element read as number `index`.

    >>> layout = align_pair(np.zeros((2, 3)).T, np.zeros((2, 3)).T)
    >>> find_place(layout, 1)
    2
    """
    if len(layout.shape) == 1 and not layout.flipped[0]:
        return index
    places = [0] * len(layout.shape)
    for axis, place in zip(layout.axes, np.unravel_index(index, layout.turned), strict=True):
        places[axis] = int(place)
        if layout.flipped[axis]:
            places[axis] = layout.shape[axis] - 1 - places[axis]
    return int(np.ravel_multi_index(places, layout.shape)) if places else 0


def cut_pieces(layout: PairLayout, limit: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield pieces of at most `limit` elements: where one begins, and both sides of it."""
    if layout.candidate.shape == layout.reference.shape:
        yield from _cut_views(layout.candidate, layout.reference, limit, 0)
        return
    for start in range(0, layout.candidate.size, limit):
        part = slice(start, start + limit)
        yield start, layout.candidate.flat[part], layout.reference.flat[part]


def _cut_views(
    candidate: Array, reference: Array, limit: int, start: int
) -> Iterator[tuple[int, Array, Array]]:
    if candidate.size <= limit:
        yield start, candidate, reference
        return
    row = candidate.size // len(candidate)
    rows = limit // row
    if rows:
        for first in range(0, len(candidate), rows):
            part = slice(first, first + rows)
            yield start + first * row, candidate[part], reference[part]
    else:
        for number in range(len(candidate)):
            yield from _cut_views(candidate[number], reference[number], limit, start + number * row)


# --- memory --------------------------------------------------------------------------------------


def find_mapping(array: Array) -> mmap.mmap | None:
    """Return the mapped file that a read-only flat array shows, or None."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    known = hasattr(mmap, "MADV_DONTNEED") and array.flags.c_contiguous
    return base if known and isinstance(base, mmap.mmap) and not array.flags.writeable else None


def release_pages(mapping: mmap.mmap, piece: Array) -> None:
    """Give back the memory of a piece of a mapped file; the file has its bytes.

    Without this a comparison of large files would seem to use as much memory as they are long.
    """
    start = np.frombuffer(mapping, np.uint8, 1).ctypes.data
    first = piece.ctypes.data - start
    page = mmap.PAGESIZE
    begin, end = -(-first // page) * page, (first + piece.nbytes) // page * page
    if end > begin:
        mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)
