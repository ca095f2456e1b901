"""Find where the records of a stored zip begin and end, without trusting any number in it.

`zipfile` costs ten times as much for a file of one tensor, and decompresses what it is told to.
Here: end record → (zip64 end record) → central directory → local headers → byte ranges. Every
range is checked against the file, and every loop against a fixed limit.
"""

from __future__ import annotations

import mmap
from struct import Struct

from tensorprobe.errors import TensorFileError

__all__ = ["Buffer", "Records", "read_directory"]

Buffer = bytes | memoryview | mmap.mmap
# The first byte and the size of each record, by its name.
Records = dict[str, tuple[int, int]]

# A file of one tensor has seven records; a checkpoint that is given by mistake has some thousands.
_MAX_RECORDS = 20_000
_MAX_NAME_BYTES = 4096
_MAX_COMMENT_BYTES = 0xFFFF
_IN_ZIP64_FIELD = 0xFFFFFFFF
_ENCRYPTED = 1

_END = Struct("<4s6xHIIH")  # signature, record count, directory size and offset, comment length
_LOCATOR = Struct("<4s4xQ4x")  # signature, offset of the zip64 end record
_END64 = Struct("<4s28xQQQ")  # signature, record count, directory size and offset
_ENTRY = Struct("<4s4xHH8xIIHHH8xI")  # flags, method, 2 sizes, 3 lengths, header offset
_LOCAL = Struct("<4s22xHH")  # signature, name length, extra length
_SIZE64 = Struct("<Q")
_EXTRA = Struct("<HH")  # id, length


def read_directory(buffer: Buffer, *, where: str) -> Records:
    """Return the byte range of each record of a zip, in the order of its directory.

    >>> import io, zipfile
    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("a/version", "3")
    >>> read_directory(file.getvalue(), where="a.pt")
    {'a/version': (39, 1)}

    Args:
        buffer: the whole file.
        where: what messages call the file.

    Returns:
        For each name the offset of its first byte and its size.

    Raises:
        TensorFileError: the zip is cut short, broken, compressed or encrypted.
    """
    count, start, end = _find_directory(buffer, where)
    records: Records = {}
    at = start
    for _ in range(count):
        if at + _ENTRY.size > end:
            raise _broken(where, "its directory ends too early")
        entry = _ENTRY.unpack_from(buffer, at)
        signature, flags, method, packed, size, name_length, extra_length, comment, header = entry
        names_at = at + _ENTRY.size
        at = names_at + name_length + extra_length + comment
        if signature != b"PK\x01\x02" or at > end or name_length > _MAX_NAME_BYTES:
            raise _broken(where, "its directory is damaged")
        # surrogateescape never fails and never makes two names one.
        name = bytes(buffer[names_at : names_at + name_length]).decode("utf-8", "surrogateescape")
        if size == _IN_ZIP64_FIELD or packed == _IN_ZIP64_FIELD or header == _IN_ZIP64_FIELD:
            extra = bytes(buffer[names_at + name_length : names_at + name_length + extra_length])
            size, packed, header = _read_zip64_field(extra, size, packed, header, where)
        if flags & _ENCRYPTED or method != 0 or size != packed:
            raise TensorFileError(
                f"{where}: is a compressed or encrypted zip, and torch.save writes neither; "
                "unpack it and store it again without compression, or write it with torch.save"
            )
        if name in records:
            raise _broken(where, "it holds two records of the same name")
        records[name] = (_find_data(buffer, header, size, start, where), size)
    return records


def _find_directory(buffer: Buffer, where: str) -> tuple[int, int, int]:
    """Return how many entries the central directory has, where it starts and where it ends."""
    end_at = _find_end_record(buffer, where)
    _, count, size, start, _ = _END.unpack_from(buffer, end_at)
    limit = end_at
    locator_at = end_at - _LOCATOR.size
    if locator_at >= 0:
        signature, end64_at = _LOCATOR.unpack_from(buffer, locator_at)
        # torch writes the zip64 records into small files too, and reads them first.
        if signature == b"PK\x06\x07":
            limit = end64_at
            if end64_at + _END64.size > locator_at:
                raise _broken(where, "its end record is damaged")
            signature, count, size, start = _END64.unpack_from(buffer, end64_at)
            if signature != b"PK\x06\x06":
                raise _broken(where, "its end record is damaged")
    if start + size > limit or count * _ENTRY.size > size:
        raise _broken(where, "its directory does not fit into it")
    if count > _MAX_RECORDS:
        raise TensorFileError(
            f"{where}: holds {count} records, so it is no file of one tensor; "
            "save each tensor in a file of its own"
        )
    return count, start, start + size


def _find_end_record(buffer: Buffer, where: str) -> int:
    """Return where the end record starts: the last one whose comment reaches the end of file."""
    size = len(buffer)
    tail_at = max(0, size - _END.size)
    tail = bytes(buffer[tail_at:])
    if tail.startswith(b"PK\x05\x06") and tail.endswith(b"\0\0") and len(tail) == _END.size:
        return tail_at
    tail_at = max(0, size - _END.size - _MAX_COMMENT_BYTES)
    tail = bytes(buffer[tail_at:])
    found = tail.rfind(b"PK\x05\x06")
    while found >= 0:
        if found + _END.size <= len(tail):
            comment_length = _END.unpack_from(tail, found)[4]
            if found + _END.size + comment_length == len(tail):
                return tail_at + found
        found = tail.rfind(b"PK\x05\x06", 0, found)
    raise _broken(where, "it has no end record")


def _read_zip64_field(
    extra: bytes, size: int, packed: int, header: int, where: str
) -> tuple[int, int, int]:
    """Return size, packed size and header offset, those that did not fit taken from `extra`."""
    at = 0
    while at + _EXTRA.size <= len(extra):
        field_id, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if field_id == 1:
            wide = extra[at : at + length]
            numbers = [number for (number,) in _SIZE64.iter_unpack(wide[: len(wide) // 8 * 8])]
            result = []
            for number in (size, packed, header):
                if number == _IN_ZIP64_FIELD:
                    if not numbers:
                        raise _broken(where, "its zip64 field is too short")
                    number = numbers.pop(0)
                result.append(number)
            return result[0], result[1], result[2]
        at += length
    # A file of exactly 4 GiB - 1 may say so in the old field.
    return size, packed, header


def _find_data(buffer: Buffer, header: int, size: int, limit: int, where: str) -> int:
    """Return the offset of a record's first byte, which only its local header tells."""
    if header + _LOCAL.size > limit:
        raise _broken(where, "a record lies outside of it")
    signature, name_length, extra_length = _LOCAL.unpack_from(buffer, header)
    start: int = header + _LOCAL.size + name_length + extra_length
    if signature != b"PK\x03\x04" or start + size > limit:
        raise _broken(where, "a record lies outside of it")
    return start


def _broken(where: str, what: str) -> TensorFileError:
    return TensorFileError(
        f"{where}: is a damaged or cut zip ({what}); the run that wrote it may have been killed or "
        "its disk full: write the file again or copy it again"
    )
