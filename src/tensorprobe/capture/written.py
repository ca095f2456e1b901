"""Which arguments a call that returns no tensor has written into, as `a[0] = b` does.

They stand for its outputs: the gradients that come in are theirs.
"""

from __future__ import annotations

import torch

from tensorprobe.capture.graph_edges import is_new, place_in_base
from tensorprobe.capture.transforms import below_vmap, is_transforming

__all__ = ["written_tensors"]


def written_tensors(given: list[torch.Tensor], start: int) -> list[torch.Tensor]:
    """Return the tensors that a call has written into, as far as gradients go through that.

    Of several that share memory the first counts. No view is asked for its node: see `InputEdges`.

    Args:
        given: the tensors that the call was given.
        start: the sequence number before the call.
    """
    if is_transforming():
        given = [below_vmap(tensor) for tensor in given]
    written: dict[int, torch.Tensor] = {}
    for tensor in given:
        if not tensor.requires_grad:
            continue
        base = tensor._base if tensor._is_view() else None
        owner = tensor if base is None else base
        # Where it is not known which part of its base a view is, only its own node could tell.
        if is_new(owner.grad_fn, start) and (base is None or place_in_base(tensor) is not None):
            written.setdefault(id(owner), tensor)
    return list(written.values())
