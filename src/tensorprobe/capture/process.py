"""Which process of a run this is."""

from __future__ import annotations

import os

import torch

__all__ = ["current_rank"]


def current_rank() -> int | None:
    """Return this process's rank; before its group is made, the one that its launcher gave it."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and size.isdecimal() else None
