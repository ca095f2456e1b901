"""The bits of a tensor as numpy sees them, without a copy where the tensor is on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tensorprobe.dtypes import DTYPES, DType
from tensorprobe.summary.layout import merged_layout
from tensorprobe.tensor_data import TensorData

__all__ = [
    "PLAIN_DTYPES",
    "fetch",
    "from_host",
    "have_equal_bits",
    "hold_same_bits",
    "is_plain",
    "place_of",
    "send",
    "to_host",
    "view_place",
]

# What numpy lacks is looked at through an integer of the same size.
_LENS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BY_NAME = {name: getattr(torch, name.removeprefix("torch."), None) for name in DTYPES}
PLAIN_DTYPES: frozenset[torch.dtype] = frozenset(
    dtype for dtype in _BY_NAME.values() if isinstance(dtype, torch.dtype)
)
"""The dtypes whose numbers can be looked at."""

# Asked of every tensor.
_PLAIN_TYPES: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))
_STRIDED = torch.strided
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
PLAIN_TRAITS = (_PLAIN_TYPES, PLAIN_DTYPES, _STRIDED, _is_wrapped)
"""What `is_plain` asks for, for whoever asks in another language."""

# Not an array of ctypes' own: each size would make another class.
_view_memory = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_WRITABLE = 0x200

# From so many bytes on one thread is too few.
_LARGE = 1 << 20
# Larger parts are no faster, and smaller ones cost more copies.
_STAGE = 1 << 25

_VIEWED = frozenset(dtype for dtype in PLAIN_DTYPES if not DTYPES[str(dtype)].native)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds strided numbers that can be looked at: no subclass of its own kind."""
    # The type comes first: to ask a subclass for anything may run its own code.
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.layout is _STRIDED
        and tensor.dtype in PLAIN_DTYPES
        and not tensor.is_nested
        and not tensor.is_meta
        and not _is_wrapped(tensor)
        and _has_memory(tensor)
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        # FSDP and its like free the memory of a tensor that they will fill again.
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        # A batch of gradients has none of its own.
        return False


def to_host(tensor: torch.Tensor) -> TensorData:
    """Return a plain tensor's data on the host; waits for its device if it has another.

    What is on the host is not copied: the caller keeps the tensor while it looks.
    """
    dtype = DTYPES[str(tensor.dtype)]
    bits = tensor.detach()
    if bits.is_conj() or bits.is_neg():
        bits = bits.resolve_conj().resolve_neg()
    elif bits.device.type == "cpu":
        return TensorData(dtype, _look_at(bits, dtype))
    if tensor.dtype in _VIEWED:
        bits = bits.view(_LENS[dtype.itemsize])
    return TensorData(dtype, bits.cpu().numpy().view(dtype.carrier))


def place_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return where a plain tensor's bytes are, and how many, if they are on the host in C order."""
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def have_equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors on the host lie in the same way and hold the same bits.

    That some lie otherwise, or hold zeros of other signs, is no proof of the contrary.

    >>> have_equal_bits(torch.ones(2, 3).t(), torch.ones(2, 3).t())
    True
    """
    if one.dtype is not other.dtype or one.shape != other.shape or one.stride() != other.stride():
        return False
    if not (one.is_cpu and other.is_cpu) or _are_odd(one) or _are_odd(other):
        return False
    size = one.numel()
    if size > 1 and merged_layout(one) != ((1, size),):
        return False
    return not _compare_memory(one.data_ptr(), other.data_ptr(), size * one.element_size())


def hold_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors on the host hold the same numbers, or at least the same bits.

    However they lie; NaN is equal to no number, but its bits are.

    >>> hold_same_bits(torch.ones(2, 4)[:, ::2], torch.ones(2, 2))
    True
    """
    if have_equal_bits(one, other) or torch.equal(one, other):
        return True
    return one.dtype is other.dtype and torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _are_odd(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


# A tenth of the time of torch.equal.
_compare_memory = ctypes.CDLL(None).memcmp
_compare_memory.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def view_place(address: int, size: int) -> memoryview:
    """Return bytes as they are in memory; the caller keeps what they belong to."""
    view: memoryview = _view_memory(address, size, _WRITABLE)
    return view


def from_host(data: TensorData) -> torch.Tensor:
    """Return a tensor of its own with these bits, in the layout that they lie in.

    Args:
        data: the bits, perhaps those of a mapped file.

    >>> from tensorprobe.dtypes import DTYPES
    >>> from_host(TensorData(DTYPES["torch.bfloat16"], np.array([0x3F80], np.uint16)))
    tensor([1.], dtype=torch.bfloat16)

    Raises:
        TypeError: this torch has no such dtype.
    """
    dtype = getattr(torch, data.dtype.name.removeprefix("torch."), None)
    if dtype is None:
        raise TypeError(f"this torch has no {data.dtype.name}")
    is_real = data.dtype.kind != "complex"
    if is_real and data.array.nbytes >= _LARGE and data.array.flags.c_contiguous:
        return _copy_large(data, dtype)
    # A copy: the array may be a mapped file, and an expanded one must be dense to be written to.
    bits = np.array(data.array, order="K", copy=True)
    if data.dtype.kind == "bool" or (data.dtype.native and data.dtype.itemsize > 8):
        return torch.from_numpy(bits)
    # Older torch takes no unsigned integers but bytes from numpy.
    lens = np.dtype("uint8" if data.dtype.itemsize == 1 else f"int{data.dtype.itemsize * 8}")
    return torch.from_numpy(bits.view(lens)).view(dtype)


def fetch(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the host; one that is there already is not copied.

    From a CUDA device large ones come by way of pinned memory: a device writes into pages of its
    own choice at a tenth of the speed, and pinning as much as a large tensor needs takes as long.
    """
    if tensor.device.type == "cpu":
        return tensor
    if not _goes_in_parts(tensor, tensor.device):
        return tensor.cpu()
    tensor = tensor.resolve_conj().resolve_neg()
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    return host if _copy_in_parts(tensor.contiguous(), host) else tensor.cpu()


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host's tensor on a device; to CUDA large ones go by way of pinned memory."""
    if tensor.device.type != "cpu" or not _goes_in_parts(tensor, device):
        return tensor.to(device)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return tensor.to(device)
    there = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return there if _copy_in_parts(tensor, there) else tensor.to(device)


def _goes_in_parts(tensor: torch.Tensor, device: torch.device) -> bool:
    if device.type != "cuda" or not is_plain(tensor):
        return False
    return tensor.numel() * tensor.element_size() >= _LARGE


def _copy_in_parts(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Copy between host and device; False, and nothing, where no memory can be pinned.

    The host's side of it is done by all of torch's threads, which also share the work of making
    new pages.
    """
    size = source.numel() * source.element_size()
    try:
        # torch keeps it for the next.
        stage = torch.empty(min(size, _STAGE), dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return False
    with torch.no_grad():
        bits, place = source.view(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        for start in range(0, size, _STAGE):
            part = bits[start : start + _STAGE]
            held = stage[: len(part)].copy_(part)
            place[start : start + _STAGE].copy_(held)
    return True


def _copy_large(data: TensorData, dtype: torch.dtype) -> torch.Tensor:
    """Copy with all of torch's threads, which also share the work of making the pages."""
    array = data.array
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    source = torch.frombuffer(memory, dtype=dtype).view(array.shape)
    return torch.empty(array.shape, dtype=dtype).copy_(source)


def _look_at(tensor: torch.Tensor, dtype: DType) -> npt.NDArray[Any]:
    """Return a view of a tensor's memory.

    Not by `.numpy()`: that forbids for good that anybody resizes the storage, as FSDP does.
    """
    shape, strides = tuple(tensor.shape), tensor.stride()
    if not tensor.numel():
        return np.empty(shape, dtype.carrier)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = view_place(tensor.data_ptr(), (last + 1) * dtype.itemsize)
    in_bytes = tuple(stride * dtype.itemsize for stride in strides)
    return np.ndarray(shape, dtype.carrier, memory, 0, in_bytes)
