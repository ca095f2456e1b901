"""Cut a pair of arrays into pieces and let threads take one after the other.

Pieces do not depend on the number of threads, so what is added up over them need not either.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import numpy.typing as npt

from tensorprobe.metrics.pair_layout import PairLayout, cut_pieces, find_mapping, release_pages
from tensorprobe.system.cores import count_cores
from tensorprobe.system.thread_pool import ThreadPool

__all__ = ["PIECE_BYTES", "over_pieces"]

Array = npt.NDArray[Any]
Found = TypeVar("Found")

PIECE_BYTES = 4 << 20
# Below this a thread costs more than it saves.
THREAD_BYTES = 4 << 20
# From here on mapped pages are given back as soon as they are read.
RELEASE_BYTES = 32 << 20


def over_pieces(
    layout: PairLayout, measure_piece: Callable[[int, Array, Array], Found], threads: int = 0
) -> list[Found]:
    """Return what was found in each piece, in any order.

    Args:
        layout: the pair.
        measure_piece: is given where a piece begins and both sides of it.
        threads: how many threads may work; 0 for all cores of this process.
    """
    width = max(layout.candidate.itemsize, layout.reference.itemsize)
    limit = PIECE_BYTES // width
    size = layout.candidate.size
    if size <= limit:
        return [measure_piece(0, layout.candidate, layout.reference)]
    workers = min(size * width // THREAD_BYTES, threads or count_cores())
    pieces = cut_pieces(layout, limit)
    lock = Lock()
    maps = [find_mapping(side) for side in (layout.candidate, layout.reference)]

    def take_pieces(_worker: int = 0) -> list[Found]:
        parts: list[Found] = []
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return parts
            parts.append(measure_piece(*piece))
            for mapping, side in zip(maps, piece[1:], strict=True):
                if mapping is not None and size * width >= RELEASE_BYTES:
                    release_pages(mapping, side)

    if workers <= 1:
        return take_pieces()
    with ThreadPool(workers) as pool:
        return [part for parts in pool.map(take_pieces, range(workers)) for part in parts]
