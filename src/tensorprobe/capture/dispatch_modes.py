"""Step out of sight of the dispatch modes that are on: they see every operator of their thread.

A mode of the user's counts operators, or keeps their results for recomputation (selective
activation checkpointing); what we read a tensor with is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

__all__ = ["count_dispatch_modes", "without_dispatch_modes"]

count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns how many dispatch modes are on in this thread."""


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Take all dispatch modes of this thread off, and put them back in the same order."""
    # Not by torch's own function for this: it imports the half of its compiler.
    modes = [_pop_mode() for _ in range(count_dispatch_modes())]
    try:
        yield
    finally:
        while modes:
            _push_mode(modes.pop())
