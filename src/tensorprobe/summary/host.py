"""The bits of a tensor as numpy sees them, without a copy where the tensor is on the host."""

from __future__ import annotations

import torch

from tensorprobe.dtypes import DTYPES
from tensorprobe.tensor_data import TensorData

__all__ = ["is_plain", "to_host"]

# What numpy lacks is looked at through an integer of the same size.
_LENS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_VIEWED = {
    dtype
    for dtype in (getattr(torch, name.removeprefix("torch."), None) for name in DTYPES)
    if dtype is not None and not DTYPES[str(dtype)].native
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds strided numbers that can be looked at: no subclass of its own kind."""
    return (
        tensor.layout is torch.strided
        and str(tensor.dtype) in DTYPES
        and not tensor.is_nested
        and tensor.device.type != "meta"
        and (type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
    )


def to_host(tensor: torch.Tensor) -> TensorData:
    """Return a plain tensor's data on the host; waits for its device if it has another."""
    dtype = DTYPES[str(tensor.dtype)]
    bits = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in _VIEWED:
        bits = bits.view(_LENS[dtype.itemsize])
    return TensorData(dtype, bits.cpu().numpy().view(dtype.carrier))
