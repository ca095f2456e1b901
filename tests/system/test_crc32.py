"""The checksum is zlib's, whatever computes it and however the memory is cut."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.system.crc32 import crc32, load_crc32

COMPILED = load_crc32()
WAYS = COMPILED.ways if COMPILED is not None else ()
NOISE = np.random.default_rng(0).integers(0, 256, 40_000_000, np.uint8)

needs_compiled = pytest.mark.skipif(COMPILED is None, reason="nothing was compiled")
every_way = pytest.mark.parametrize("way", range(len(WAYS)), ids=WAYS)
checksums = st.integers(0, 2**32 - 1)


def by_way(data: npt.NDArray[np.uint8], value: int, way: int) -> int:
    assert COMPILED is not None
    return COMPILED.crc32(data.ctypes.data, data.nbytes, value, way)


@every_way
def test_every_short_length_at_every_alignment(way: int) -> None:
    for length in range(301):
        start = length % 67
        data = NOISE[start : start + length]
        assert by_way(data, 0, way) == zlib.crc32(data), length
        assert by_way(data, length * 0x01234567, way) == zlib.crc32(
            data, length * 0x01234567 & 0xFFFFFFFF
        )


@every_way
@given(length=st.integers(0, 20_000), start=st.integers(0, 5000), value=checksums)
def test_any_length_start_and_value(way: int, length: int, start: int, value: int) -> None:
    data = NOISE[start : start + length]
    assert by_way(data, value, way) == zlib.crc32(data, value)


@every_way
@given(cuts=st.lists(st.integers(0, 9000), max_size=6))
def test_pieces_in_a_row_give_the_checksum_of_the_whole(way: int, cuts: list[int]) -> None:
    value = 0
    for piece in np.split(NOISE[:9000], sorted(cuts)):
        value = by_way(piece, value, way)
    assert value == zlib.crc32(NOISE[:9000])


@every_way
@pytest.mark.parametrize("filling", [0, 255])
def test_equal_bytes(way: int, filling: int) -> None:
    data = np.full(5001, filling, np.uint8)
    assert by_way(data, 0, way) == zlib.crc32(data)


@needs_compiled
@given(
    first=st.binary(max_size=300), second=st.binary(max_size=300), zeros=st.integers(0, 1_000_000)
)
def test_combined_checksums_are_of_the_pieces_in_a_row(
    first: bytes, second: bytes, zeros: int
) -> None:
    assert COMPILED is not None
    tail = second + bytes(zeros)
    combined = COMPILED.combine(zlib.crc32(first), zlib.crc32(tail), len(tail))
    assert combined == zlib.crc32(first + tail)


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("length", [2 * (8 << 20), 39_999_990])
def test_threads_do_not_change_the_checksum(threads: int | None, length: int) -> None:
    data = NOISE[7 : 7 + length]
    wanted = zlib.crc32(data, 99)
    assert crc32(data.ctypes.data, data.nbytes, 99, threads=threads) == wanted


def test_no_bytes_have_the_checksum_of_those_before() -> None:
    assert crc32(0, 0) == 0
    assert crc32(0, 0, 1234) == 1234


@needs_compiled
def test_wrong_arguments_are_refused() -> None:
    assert COMPILED is not None
    with pytest.raises(ValueError, match="got -1 bytes"):
        COMPILED.crc32(1, -1)
    with pytest.raises(ValueError, match="at address 0"):
        COMPILED.crc32(0, 1)
    with pytest.raises(ValueError, match="no way 9"):
        COMPILED.crc32(0, 0, 0, 9)
    with pytest.raises(TypeError):
        COMPILED.crc32("a", 1)  # type: ignore[arg-type]


def test_zlib_does_the_work_where_nothing_is_compiled() -> None:
    program = (
        "import ctypes, tensorprobe.system.crc32 as c\n"
        "data = ctypes.create_string_buffer(b'tensor')\n"
        "print(c.load_crc32(), c.crc32(ctypes.addressof(data), 6, 5), c.crc32(0, 0, 5))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TENSORPROBE_NO_KERNEL": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == f"None {zlib.crc32(b'tensor', 5)} 5\n"
