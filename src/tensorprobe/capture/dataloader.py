"""Follow the iterations of torch DataLoaders: what `enable_dataloader` asks for.

A DataLoader offers no hook, so the `__next__` of its iterators is replaced while a watcher is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

__all__ = ["NO_BATCHES", "NO_CALLS", "DataLoaderWatcher"]

NO_CALLS = (
    "no call came between its batch and the request for the next one, as when batches are fetched "
    "ahead by a wrapper, by zip() or in another thread; leave enable_dataloader out, and call "
    "start(), stop() and step() in the loop"
)
"""What is told of a step in which nothing was recorded."""

NO_BATCHES = (
    "nothing was captured in this process: enable_dataloader waits for a DataLoader of torch, and "
    "none gave a batch; without one, start and stop the capture by hand"
)
"""What is told of a run without a step."""

_Iterator: Any = dataloader._BaseDataLoaderIter


class DataLoaderWatcher:
    """Tells when an iteration ends and when the next one begins.

    Args:
        on_next: called when a batch is asked for: the iteration before is over.
        on_batch: called when the batch is there.
    """

    def __init__(self, on_next: Callable[[], None], on_batch: Callable[[], None]) -> None:
        self._on_next = on_next
        self._on_batch = on_batch
        self._original: Callable[[Any], Any] | None = None

    def open(self) -> None:
        """Start watching every DataLoader of the process."""
        original = self._original = _Iterator.__next__

        @functools.wraps(original)
        def following(iterator: Any) -> Any:
            self._on_next()
            batch = original(iterator)
            self._on_batch()
            return batch

        _Iterator.__next__ = following

    def close(self) -> None:
        """Put everything back as it was; doing it twice does nothing."""
        if self._original is not None:
            _Iterator.__next__ = self._original
            self._original = None
