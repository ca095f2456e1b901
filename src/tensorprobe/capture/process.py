"""Which process of a run this is, and what it computes on."""

from __future__ import annotations

import functools
import os

import torch

__all__ = ["current_rank", "device_names"]


def current_rank() -> int | None:
    """Return this process's rank; before its group is made, the one that its launcher gave it."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and size.isdecimal() else None


@functools.cache
def device_names() -> tuple[str, ...]:
    """Return the devices that torch sees here, as a dump names them."""
    if torch.cuda.is_available():
        return tuple(
            f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        )
    return ("cpu",)
