"""Load the one tensor of a `.pt` or `.npy` file without torch, mapped instead of read.

    open (regular files only) ─► sniff the first bytes ─► zip directory + pickle, or npy header
        ─► check every number against the file ─► a view of the mapped bytes

The result is bit for bit what `torch.load(weights_only=True)` or `numpy.load` gives. A file is
hostile until shown otherwise: whatever it holds, `load_tensor` returns or raises a
`TensorprobeError`, soon, and with no more memory than a small multiple of the file's size.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DType, dtype_of_numpy
from tensorprobe.errors import DumpError, TensorFileError, UnsafeFileError
from tensorprobe.store.machine_memory import most_memory
from tensorprobe.store.tensor_pickle import (
    MAX_PICKLE_BYTES,
    TensorPickle,
    read_tensor_pickle,
    shown,
)
from tensorprobe.store.zip_directory import Buffer, Records, read_directory
from tensorprobe.system.extensions import load_compiled
from tensorprobe.tensor_data import TensorData

__all__ = ["load_tensor"]

# Below this, one read is faster than a mapping and its page faults. It also keeps a comparison
# that holds very many small tensors below the kernel's limit of 65,530 mappings.
_MAP_FROM_BYTES = 1 << 18
# O_NONBLOCK: should a fifo take the file's place after the check, opening it must not hang.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_ZIP_MAGIC = b"PK\x03\x04"
_NPY_MAGIC = b"\x93NUMPY"
# Before torch 1.6: a pickle of the number 0x1950a86a20f9469cfc6c, then more pickles.
_LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLE_MAGIC = b"\x80"

_MAX_NPY_HEADER = 10_000  # numpy's own limit
_NPY_HEADER = re.compile(
    r"""\s*\{\s*(?:(?:
        ['"]descr['"]\s*:\s*['"](?P<descr>[^'"]*)['"]
      | ['"]fortran_order['"]\s*:\s*(?P<fortran>True|False)
      | ['"]shape['"]\s*:\s*\((?P<shape>[^()]*)\)
    )(?:\s*,)?\s*)*\}\s*""",
    re.VERBOSE,
)
_NPY_FIELDS = re.compile(r"""['"]descr['"]\s*:\s*[\[(]""")
_NPY_SHAPE = re.compile(r"\s*(?:\d{1,18}L?\s*(?:,\s*\d{1,18}L?\s*)*,?\s*)?")  # 3L: Python 2
_NPY_DESCR = re.compile(r"[<>|=]?[?biufc]\d{0,2}")


def load_tensor(path: str | os.PathLike[str]) -> TensorData:
    """Load the tensor of a `.pt` (as torch.save writes it) or `.npy` file; the name is not asked.

    >>> load_tensor("/nowhere/a.pt")
    Traceback (most recent call last):
    tensorprobe.errors.TensorFileError: /nowhere/a.pt: does not exist; check the name, or ...

    Args:
        path: a regular file. It must not shrink while the result is in use.

    Returns:
        The tensor; its array is read-only and aligned, and pages in as it is used. It is a view
        with the file's own strides; conjugated, negated and byte-swapped tensors are resolved,
        which copies them.

    Raises:
        UnsafeFileError: the file asks for code to be run; none was.
        TensorFileError: it is missing, cannot be read, is damaged, or holds no single dense tensor.
    """
    where = shown(os.fsdecode(path))
    buffer, records = _open_quickly(path)
    if records is None:
        buffer = _open_buffer(path, where)
    try:
        return _load_buffer(buffer, where, records)
    except BaseException:
        # An error that somebody keeps would keep the mapping too, and its file descriptor.
        if isinstance(buffer, mmap.mmap):
            with suppress(BufferError):
                buffer.close()
        raise


def _load_buffer(buffer: Buffer, where: str, records: Records | None) -> TensorData:
    head = bytes(buffer[:32])
    try:
        if records is not None:
            return _load_pt(buffer, where, records)
        if head.startswith(_ZIP_MAGIC):
            return _load_pt(buffer, where, read_directory(buffer, where=where))
        if head.startswith(_NPY_MAGIC):
            return _load_npy(buffer, where)
    except MemoryError as err:
        raise TensorFileError(
            f"{where}: needs a copy of {len(buffer):,} bytes in memory, which is not to be had; "
            "compare on a machine with more memory"
        ) from err
    raise _unknown_format(head, where)


def _open_quickly(path: str | os.PathLike[str]) -> tuple[Buffer, Records | None]:
    """Open a file of the usual kind in one step; no records where a closer look is needed."""
    compiled = load_compiled("tensorprobe.store._zip_open", "open_zip")
    opened = None
    if compiled is not None:
        with suppress(ValueError):  # a name that no file can have
            opened = compiled.open_zip(path, _MAP_FROM_BYTES)
    if opened is None:
        return b"", None
    fd, size, content, records = opened
    if content is not None:
        return content, records
    try:
        return _map(fd, size), records
    except (OSError, ValueError):
        return b"", None
    finally:
        os.close(fd)


def _map(fd: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        # Else every mapping keeps a descriptor of its own.
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(fd, size, access=mmap.ACCESS_READ)


def _open_buffer(path: str | os.PathLike[str], where: str) -> Buffer:
    """Return the bytes of a file: read if it is small, mapped if not."""
    try:
        _require_regular(os.stat(path), where)
        fd = os.open(path, _OPEN_FLAGS)
        try:
            status = os.fstat(fd)
            _require_regular(status, where)
            if status.st_size < _MAP_FROM_BYTES:
                return _read_all(fd, status.st_size, where)
            return _map(fd, status.st_size)
        finally:
            os.close(fd)
    except OSError as err:
        what, then = {
            FileNotFoundError: ("does not exist", "check the name, or dump this tensor again"),
            NotADirectoryError: ("does not exist", "check the name, or dump this tensor again"),
            PermissionError: ("may not be read by this user", "change its permissions"),
        }.get(type(err), (f"cannot be read ({err.strerror or err})", "check the disk and retry"))
        raise TensorFileError(f"{where}: {what}; {then}") from err
    except ValueError as err:
        # A name with a zero byte, or a file that shrank just now.
        raise TensorFileError(f"{where}: cannot be read ({err}); check the name") from err


def _require_regular(status: os.stat_result, where: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise TensorFileError(f"{where}: is a folder; give the file of one tensor")
    if not stat.S_ISREG(status.st_mode):
        raise TensorFileError(
            f"{where}: is a pipe, socket or device; give a regular .pt or .npy file"
        )
    if status.st_size == 0:
        raise TensorFileError(
            f"{where}: is empty; the run that wrote it may have been killed or its disk full: "
            "dump this tensor again"
        )


def _read_all(fd: int, size: int, where: str) -> bytes:
    data = os.read(fd, size)
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            raise TensorFileError(f"{where}: shrank while it was read; retry when it is complete")
        data += more
    return data


def _unknown_format(head: bytes, where: str) -> DumpError:
    if _LEGACY_MAGIC in head:
        return TensorFileError(
            f"{where}: is in the form that torch.save wrote before version 1.6; convert it: "
            "torch.save(torch.load(path, weights_only=True), path)"
        )
    if head.startswith(_PICKLE_MAGIC):
        return UnsafeFileError(
            f"{where}: is a pickle, which can run code when it is loaded; it was not loaded: "
            "save the tensor with torch.save or numpy.save"
        )
    return TensorFileError(
        f"{where}: is neither a .pt nor a .npy file (it starts with {head[:8].hex(' ')}); "
        "save the tensor with torch.save or numpy.save"
    )


def _load_pt(buffer: Buffer, where: str, records: Records) -> TensorData:
    # The folder of the first record, as torch has it: "archive" or the file's own name.
    archive = next(iter(records), "").partition("/")[0]
    program = records.get(f"{archive}/data.pkl")
    if program is None or f"{archive}/constants.pkl" in records:
        raise _no_tensor_archive(records, archive, where)
    start, size = program
    tensor = read_tensor_pickle(
        bytes(buffer[start : start + min(size, MAX_PICKLE_BYTES)]),
        where=where,
        cut=size > MAX_PICKLE_BYTES,
    )
    storage = records.get(f"{archive}/data/{tensor.storage_key}")
    if storage is None:
        raise _damaged(where, "the tensor's own record is missing")
    start, size = storage
    if tensor.storage_numel * tensor.storage_dtype.itemsize > size:
        raise _damaged(where, "the tensor's record is too short")
    if _read_byteorder(buffer, records.get(f"{archive}/byteorder"), where) != sys.byteorder:
        buffer = _swap_storage(buffer, start, tensor)
        start = 0
    return TensorData(tensor.dtype, _view_tensor(buffer, start, tensor, where))


def _no_tensor_archive(records: Records, archive: str, where: str) -> TensorFileError:
    if f"{archive}/constants.pkl" in records:
        return TensorFileError(
            f"{where}: holds a TorchScript program, not one tensor; save the tensor with torch.save"
        )
    if any(name.endswith(".npy") for name in records):
        return TensorFileError(
            f"{where}: is an .npz archive of arrays, not one tensor; save each array in a .npy "
            "file of its own"
        )
    return TensorFileError(
        f"{where}: is a zip that torch.save did not write (no data.pkl in it); save the tensor "
        "with torch.save"
    )


def _damaged(where: str, what: str) -> TensorFileError:
    return TensorFileError(f"{where}: is damaged ({what}); write the file again or copy it again")


def _read_byteorder(buffer: Buffer, record: tuple[int, int] | None, where: str) -> str:
    if record is None:
        return "little"  # what torch takes for granted
    start, size = record
    order = bytes(buffer[start : start + min(size, 8)])
    if order not in (b"little", b"big"):
        raise _damaged(where, "its byte order is neither little nor big")
    return order.decode()


def _swap_storage(buffer: Buffer, start: int, tensor: TensorPickle) -> memoryview:
    """Return a copy of the storage in this machine's byte order.

    The unit is the storage's dtype, not the tensor's, because that is what torch does: dtypes that
    it saves in an untyped storage (uint16, complex32) it does not swap.
    """
    dtype = tensor.storage_dtype
    count = tensor.storage_numel * dtype.itemsize
    unit = dtype.itemsize // 2 if dtype.kind == "complex" else dtype.itemsize
    storage = _view_bytes(buffer, start, count).copy()
    storage.view(f"u{unit}").byteswap(inplace=True)
    return storage.data


def _view_tensor(buffer: Buffer, start: int, tensor: TensorPickle, where: str) -> npt.NDArray[Any]:
    """Return the tensor's elements as a strided view of its storage, `buffer` from `start` on.

    Raises:
        TensorFileError: an element lies outside of the storage.
    """
    dtype, itemsize = tensor.dtype, tensor.dtype.itemsize
    if 0 in tensor.shape:
        return _make_view(b"", 0, dtype, tensor.shape, None, where)
    first = tensor.offset
    last = first + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True)
    )
    if (last + 1) * itemsize > tensor.storage_numel * tensor.storage_dtype.itemsize:
        raise _damaged(where, "the tensor reaches beyond its record")
    count = math.prod(tensor.shape) * itemsize
    # One that is no larger than its record is a part of the file; an expanded one may be anything.
    if count > tensor.storage_numel * tensor.storage_dtype.itemsize and count > most_memory():
        raise TensorFileError(
            f"{where}: is an expanded tensor of {count:,} bytes, more than this machine has memory "
            "for; save it as it is before expand()"
        )
    # The step of a dimension of size 1 is never taken, and may be too large for numpy.
    strides = [
        0 if size == 1 else step * itemsize
        for size, step in zip(tensor.shape, tensor.stride, strict=True)
    ]
    start += first * itemsize
    if tensor.conj or tensor.neg:
        # All that lies between the first and the last element: an expanded tensor stays small.
        span = _view_bytes(buffer, start, (last + 1 - first) * itemsize).copy()
        _flip_signs(span, tensor, where)
        buffer, start = span.data, 0
    return _make_view(buffer, start, dtype, tensor.shape, strides, where)


def _flip_signs(span: npt.NDArray[np.uint8], tensor: TensorPickle, where: str) -> None:
    """Resolve the conjugate and the negative bit in place by flipping signs, also those of NaNs."""
    dtype = tensor.dtype
    is_complex = dtype.kind == "complex"
    is_small_float = dtype.kind == "float" and dtype.itemsize == 1
    can_negate = dtype.kind != "bool" and not is_small_float and dtype.name not in _NO_NEGATIVE
    if (tensor.conj and not is_complex) or (tensor.neg and not can_negate):
        raise _damaged(where, f"{dtype.name} cannot be conjugated or negated")
    if dtype.kind == "int":
        numbers = span.view(dtype.carrier)
        np.negative(numbers, out=numbers)
        return
    width = dtype.itemsize // 2 if is_complex else dtype.itemsize
    parts = span.view(f"u{width}")
    sign = parts.dtype.type(1 << (8 * width - 1))
    if tensor.neg:
        parts ^= sign
    if tensor.conj:
        parts[1::2] ^= sign


# torch has no negative of these, so it cannot resolve the bit either.
_NO_NEGATIVE = frozenset(["torch.uint16", "torch.uint32", "torch.uint64"])


def _load_npy(buffer: Buffer, where: str) -> TensorData:
    descr, is_fortran, shape, start = _read_npy_header(buffer, where)
    numpy_dtype, dtype = _find_npy_dtype(descr, where)
    count = math.prod(shape)
    if count * dtype.itemsize > len(buffer) - start:
        raise _damaged(where, f"it holds fewer than {count:,} elements: cut short")
    if not numpy_dtype.isnative:
        swapped = _view_bytes(buffer, start, count * dtype.itemsize).view(numpy_dtype)
        buffer, start = swapped.byteswap().view(np.uint8).data, 0
    strides = None
    if is_fortran:
        strides = [dtype.itemsize * math.prod(shape[:axis]) for axis in range(len(shape))]
    return TensorData(dtype, _make_view(buffer, start, dtype, shape, strides, where))


def _read_npy_header(buffer: Buffer, where: str) -> tuple[str, bool, tuple[int, ...], int]:
    """Return dtype text, Fortran order, shape and where the data start.

    numpy's reader is not used: it evaluates the header as Python and warns about old files.
    """
    version = bytes(buffer[6:8])
    width = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}.get(version)
    if width is None or len(buffer) < 8 + width:
        raise _damaged(where, "its .npy version is unknown")
    length = int.from_bytes(bytes(buffer[8 : 8 + width]), "little")
    start = 8 + width + length
    if length > _MAX_NPY_HEADER or start > len(buffer):
        raise _damaged(where, "its .npy header does not fit")
    text = bytes(buffer[8 + width : start]).decode("latin-1")
    header = _NPY_HEADER.fullmatch(text)
    if header is None:
        if _NPY_FIELDS.search(text):
            raise _no_number("a structured array", where)
        raise _damaged(where, "its .npy header cannot be read")
    shape = header["shape"]
    if header["descr"] is None or header["fortran"] is None or shape is None:
        raise _damaged(where, "its .npy header is incomplete")
    if not _NPY_SHAPE.fullmatch(shape):
        raise _damaged(where, "its .npy header has no shape")
    sizes = tuple(int(size.strip().rstrip("L")) for size in shape.split(",") if size.strip())
    return header["descr"], header["fortran"] == "True", sizes, start


def _find_npy_dtype(descr: str, where: str) -> tuple[np.dtype[Any], DType]:
    if "O" in descr:
        raise UnsafeFileError(
            f"{where}: holds Python objects in a pickle, which can run code when it is loaded; it "
            "was not loaded: save the array with a number's dtype"
        )
    if _NPY_DESCR.fullmatch(descr):
        try:
            numpy_dtype = np.dtype(descr)
        except TypeError:
            raise _no_number(f"elements of type {descr}", where) from None
        dtype = dtype_of_numpy(numpy_dtype)
        if dtype is not None:
            return numpy_dtype, dtype
    raise _no_number(f"elements of type {shown(descr, limit=40)}", where)


def _no_number(what: str, where: str) -> TensorFileError:
    return TensorFileError(
        f"{where}: holds {what}, which is no dtype of torch; convert it with astype and save it"
    )


def _view_bytes(buffer: Buffer, start: int, count: int) -> npt.NDArray[np.uint8]:
    return np.ndarray((count,), np.uint8, buffer, start)


def _make_view(
    buffer: Buffer,
    start: int,
    dtype: DType,
    shape: tuple[int, ...],
    strides: Sequence[int] | None,
    where: str,
) -> npt.NDArray[Any]:
    """Return a read-only, aligned array over `buffer`; the caller has checked the bounds."""
    array: npt.NDArray[Any]
    try:
        if 0 in shape:
            array = np.empty(shape, dtype.carrier)
        else:
            array = np.ndarray(shape, dtype.carrier, buffer, start, strides)
            if not array.flags.aligned:
                # Code below numpy takes alignment for granted. A copy of what lies between the
                # first and the last element keeps the strides.
                span = sum(
                    (size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)
                )
                copy = _view_bytes(buffer, start, span + dtype.itemsize).copy()
                array = np.ndarray(shape, dtype.carrier, copy.data, 0, strides)
    except (ValueError, OverflowError) as err:
        # More dimensions or elements than numpy has room for.
        raise TensorFileError(
            f"{where}: has a shape that numpy cannot hold ({len(shape)} dimensions, "
            f"{shown(str(err), limit=80)}); save it with another shape"
        ) from err
    array.flags.writeable = False
    return array
