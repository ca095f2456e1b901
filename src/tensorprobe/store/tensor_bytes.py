"""Lay out the file of one tensor and write it, without copying the tensor and without torch.

    pt_frame / npy_frame: the bytes before and after a tensor's own
    pt_pieces / npy_pieces: header bytes, the tensor's own memory, trailer bytes
    write_whole_file: one gathering write to a hidden file, then a rename
    write_at: for a file whose parts come one by one

Given the right checksum, the pieces are byte for byte what `torch.save` (2.13, to a buffer) or
`numpy.save` writes, so every reader of those reads these.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from errno import EIO
from functools import lru_cache
from struct import Struct
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tensorprobe.dtypes import DTYPES, DType
from tensorprobe.errors import TensorFileError
from tensorprobe.system.new_file import new_file
from tensorprobe.tensor_data import TensorData

__all__ = [
    "Piece",
    "contiguous_bytes",
    "npy_frame",
    "npy_pieces",
    "pt_frame",
    "pt_pieces",
    "write_at",
    "write_whole_file",
]

Piece = bytes | memoryview


def pt_pieces(data: TensorData, *, checksum: int | None = None) -> list[Piece]:
    """Return the bytes of a `.pt` file with one tensor, in pieces to be written in a row.

    >>> from tensorprobe.dtypes import DTYPES
    >>> data = TensorData(DTYPES["torch.float32"], np.zeros((2, 3), np.float32))
    >>> [len(piece) for piece in pt_pieces(data)]
    [704, 24, 849]

    Args:
        data: the tensor; one that is not C-contiguous is copied, any other is not.
        checksum: the CRC-32 of its bytes, if it is known.

    Returns:
        Header, the tensor's memory (a view: do not change the tensor before it is written),
        trailer.
    """
    header, trailer = pt_frame(data.dtype, data.shape, checksum=checksum)
    return [header, contiguous_bytes(data), trailer]


def pt_frame(
    dtype: DType,
    shape: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    checksum: int | None = None,
) -> tuple[bytes, bytes]:
    """Return what comes before and after a tensor's bytes in its `.pt` file.

    Args:
        dtype: of the tensor.
        shape: of the tensor.
        strides: of its elements, which have no gaps; by default those of C order.
        checksum: the CRC-32 of its bytes, where that is known.
    """
    # Nobody checks this number: torch ignores it, and with it a file takes ten times as long to
    # write (DESIGN, decision 8). Hence 0, as torch.serialization.set_crc32_options(False) has it.
    return _frame_tensor(dtype.name, shape, strides or _contiguous_strides(shape), checksum or 0)


def npy_pieces(data: TensorData) -> list[Piece]:
    """Return the bytes of a `.npy` file with one tensor, in pieces to be written in a row.

    >>> from tensorprobe.dtypes import DTYPES
    >>> data = TensorData(DTYPES["torch.float32"], np.zeros((2, 3), np.float32))
    >>> [len(piece) for piece in npy_pieces(data)]
    [128, 24]

    Raises:
        TensorFileError: numpy has no such dtype.
    """
    header, _ = npy_frame(data.dtype, data.shape)
    return [header, contiguous_bytes(data)]


def npy_frame(dtype: DType, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return what comes before and after a tensor's bytes in its `.npy` file.

    Raises:
        TensorFileError: numpy has no such dtype.
    """
    if not dtype.native:
        raise TensorFileError(
            f"a .npy file cannot hold {dtype.name}, which numpy does not have; write a .pt "
            "file instead"
        )
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {
            "descr": np.lib.format.dtype_to_descr(dtype.carrier),
            "fortran_order": False,
            "shape": shape,
        },
    )
    return header.getvalue(), b""


def write_whole_file(path: str | os.PathLike[str], pieces: Sequence[Piece]) -> None:
    """Write pieces to a file that appears under its name only when it is complete.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole_file(Path(folder, "a.txt"), [b"one ", b"two"])
    ...     Path(folder, "a.txt").read_text()
    'one two'

    Args:
        path: the final name; a file that is there is replaced.
        pieces: what to write, in this order.

    Raises:
        OSError: as the system gave it; no other file is left behind.
    """
    with new_file(path) as fd:
        _write_all(fd, pieces)


_MAX_PIECES_PER_WRITE = min(os.sysconf("SC_IOV_MAX"), 1024)


def write_at(descriptor: int, offset: int, content: Piece) -> None:
    """Write one part of a file; several threads may at the same time.

    Raises:
        OSError: as the system gave it.
    """
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, offset)
        if written <= 0:
            raise _wrote_nothing()
        left, offset = left[written:], offset + written


def _wrote_nothing() -> OSError:
    return OSError(EIO, "the system wrote nothing and reported no error")


def _write_all(fd: int, pieces: Sequence[Piece]) -> None:
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        # One call takes a limited number of pieces, and of bytes: 2 GiB on Linux.
        written = os.writev(fd, left[:_MAX_PIECES_PER_WRITE])
        if written <= 0:
            raise _wrote_nothing()
        done = 0
        while done < len(left) and written >= left[done].nbytes:
            written -= left[done].nbytes
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]


def contiguous_bytes(data: TensorData) -> memoryview:
    """Return a tensor's elements in C order; a view of it where they lie so."""
    # ascontiguousarray makes one dimension of none; reshape(-1) has it so anyway.
    flat: npt.NDArray[np.uint8] = np.ascontiguousarray(data.array).reshape(-1).view(np.uint8)
    return flat.data


# --- The zip around it, as torch's writer (miniz) lays it out. ---

_ALIGNMENT = 64
_FOLDER = b"archive/"
_ZIP64_FROM = 0xFFFFFFFF
_HAS_DESCRIPTOR = 1 << 3
_IS_UTF8 = 1 << 11
# torch's hash of the names of these records, which never change.
_NAMES_HASH = 15728199511854643026
_WORD = (1 << 64) - 1

_LOCAL = Struct("<4s2xH18xHH")  # flags, lengths of name and extra; sizes follow the data
_ENTRY = Struct("<4s4xH6xIIIHH10xI")  # flags, CRC, 2 sizes, 2 lengths, header offset
_DESCRIPTOR = Struct("<4sIII")
_DESCRIPTOR64 = Struct("<4sIQQ")
_END64 = Struct("<4sQHHIIQQQQ")
_LOCATOR = Struct("<4sIQI")
_END = Struct("<4s4xHHIIH")
_FIELD = Struct("<HH")
_SIZE64 = Struct("<Q")


# The steps of a training repeat their shapes, and to lay one out takes 50 microseconds.
@lru_cache(maxsize=1024)
def _frame_tensor(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], checksum: int
) -> tuple[bytes, bytes]:
    """Return what comes before and after the elements of a tensor in its `.pt` file."""
    dtype = DTYPES[name]
    nbytes = math.prod(shape) * dtype.itemsize
    archive = _Archive()
    archive.add("data.pkl", _pickle_tensor(dtype, shape, strides))
    archive.add(".format_version", b"1")
    archive.add(".storage_alignment", str(_ALIGNMENT).encode())
    archive.add("byteorder", sys.byteorder.encode())
    archive.begin("data/0", nbytes, checksum)
    header = archive.flush()
    archive.skip(nbytes)
    archive.end()
    archive.add("version", b"3\n")
    archive.add(".data/serialization_id", archive.serialization_id())
    archive.finish()
    return header, archive.flush()


class _Archive:
    """A zip that grows: its bytes since the last flush, and the directory that comes last."""

    def __init__(self) -> None:
        self._at = 0
        self._pending = bytearray()
        self._directory = bytearray()
        self._count = 0
        self._crc_hash = 0
        self._descriptor = b""

    def add(self, name: str, content: bytes) -> None:
        """Append a record."""
        self.begin(name, len(content), crc32(content))
        self._append(content)
        self.end()

    def begin(self, name: str, size: int, crc: int) -> None:
        """Append the header of a record, padded so that its content starts aligned."""
        encoded = _FOLDER + name.encode()
        start = self._at
        is_wide = size >= _ZIP64_FROM
        is_far = start >= _ZIP64_FROM
        # torch counts an empty record for less: no descriptor, no part in the fingerprint.
        flags = _IS_UTF8 | (_HAS_DESCRIPTOR if size else 0)
        sizes = _SIZE64.pack(size) + _SIZE64.pack(size) if is_wide else b""
        offset = _SIZE64.pack(start) if is_far else b""
        # torch leaves the packed size in the header at 0: the descriptor has it.
        extra = _zip64_field(sizes[:8] + bytes(len(sizes) // 2) + offset)
        unpadded = start + _LOCAL.size + len(encoded) + len(extra) + _FIELD.size
        padding = -unpadded % _ALIGNMENT
        extra += b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        self._append(_LOCAL.pack(b"PK\x03\x04", flags, len(encoded), len(extra)) + encoded + extra)

        narrow = _ZIP64_FROM if is_wide else size
        wide = _zip64_field(sizes + offset)
        self._directory += _ENTRY.pack(
            b"PK\x01\x02",
            flags,
            crc,
            narrow,
            narrow,
            len(encoded),
            len(wide),
            _ZIP64_FROM if is_far else start,
        )
        self._directory += encoded + wide
        self._count += 1
        layout = _DESCRIPTOR64 if is_wide or is_far else _DESCRIPTOR
        self._descriptor = layout.pack(b"PK\x07\x08", crc, size, size) if size else b""
        if size:
            self._crc_hash = _combine_hash(self._crc_hash, crc)

    def skip(self, size: int) -> None:
        """Leave room for content that the caller writes from elsewhere."""
        self._at += size

    def end(self) -> None:
        """Append what follows the content of a record."""
        self._append(self._descriptor)

    def serialization_id(self) -> bytes:
        """Return torch's fingerprint of the names and the checksums so far."""
        return f"{_NAMES_HASH:020}{self._crc_hash:020}".encode()

    def finish(self) -> None:
        """Append the directory; torch writes the zip64 end records into small files too."""
        start, size = self._at, len(self._directory)
        end64 = start + size
        self._append(self._directory)
        self._append(
            _END64.pack(b"PK\x06\x06", 44, 0x031E, 45, 0, 0, self._count, self._count, size, start)
        )
        self._append(_LOCATOR.pack(b"PK\x06\x07", 0, end64, 1))
        offset = min(start, _ZIP64_FROM)
        self._append(_END.pack(b"PK\x05\x06", self._count, self._count, size, offset, 0))

    def flush(self) -> bytes:
        """Return the bytes since the last flush."""
        flushed = bytes(self._pending)
        self._pending.clear()
        return flushed

    def _append(self, content: bytes | bytearray) -> None:
        self._pending += content
        self._at += len(content)


def _zip64_field(content: bytes) -> bytes:
    return _FIELD.pack(1, len(content)) + content if content else b""


def _combine_hash(seed: int, value: int) -> int:
    return seed ^ (value + 0x9E3779B9 + (seed << 6 & _WORD) + (seed >> 2) & _WORD)


# --- The pickle inside it, opcode for opcode as torch.save with protocol 2. ---

_STORAGES = {
    "torch.float64": b"DoubleStorage",
    "torch.float32": b"FloatStorage",
    "torch.float16": b"HalfStorage",
    "torch.bfloat16": b"BFloat16Storage",
    "torch.int64": b"LongStorage",
    "torch.int32": b"IntStorage",
    "torch.int16": b"ShortStorage",
    "torch.int8": b"CharStorage",
    "torch.uint8": b"ByteStorage",
    "torch.bool": b"BoolStorage",
    "torch.complex128": b"ComplexDoubleStorage",
    "torch.complex64": b"ComplexFloatStorage",
}


def _pickle_tensor(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    storage = _STORAGES.get(dtype.name)
    count = math.prod(shape)
    memo = _memo_marks()
    if storage is not None:
        version, kind, units = b"2", b"torch\n" + storage, count
    else:
        # Dtypes that are younger than storage classes: bytes, and the dtype said at the end.
        version, kind, units = b"3", b"torch.storage\nUntypedStorage", count * dtype.itemsize
    parts = [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v" + version + b"\n" + next(memo),
        b"((X\x07\0\0\0storage" + next(memo) + b"c" + kind + b"\n" + next(memo),
        b"X\x01\0\0\x000" + next(memo) + b"X\x03\0\0\0cpu" + next(memo),
        _pickle_integer(units) + b"t" + next(memo) + b"QK\0",
        _pickle_tuple(shape, memo) + _pickle_tuple(strides, memo),
        b"\x89ccollections\nOrderedDict\n" + next(memo) + b")R" + next(memo),
    ]
    if storage is None:
        parts.append(b"ctorch\n" + dtype.name.removeprefix("torch.").encode() + b"\n" + next(memo))
    parts.append(b"t" + next(memo) + b"R" + next(memo) + b".")
    return b"".join(parts)


def _memo_marks() -> Iterator[bytes]:
    return (b"q" + bytes([number]) for number in range(256))


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        # As torch has it for empty tensors.
        step *= max(size, 1)
    return tuple(reversed(steps))


def _pickle_tuple(numbers: Iterable[int], memo: Iterator[bytes]) -> bytes:
    items = [_pickle_integer(number) for number in numbers]
    if not items:
        return b")"
    if len(items) <= 3:
        return b"".join(items) + b"\x85\x86\x87"[len(items) - 1 : len(items)] + next(memo)
    return b"(" + b"".join(items) + b"t" + next(memo)


def _pickle_integer(number: int) -> bytes:
    if number < 1 << 8:
        return b"K" + number.to_bytes(1, "little")
    if number < 1 << 16:
        return b"M" + number.to_bytes(2, "little")
    if number < 1 << 31:
        return b"J" + number.to_bytes(4, "little")
    # One bit more than the number: its sign.
    size = number.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + number.to_bytes(size, "little")
