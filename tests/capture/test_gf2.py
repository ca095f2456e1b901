"""The pieces of a checksum, put together, are the checksum."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.summary.gf2 import checksum_of_zeros, finish_checksum, word_tables


def move_on(state: int, power: int) -> int:
    tables = word_tables()[power]
    result = 0
    for byte in range(4):
        result ^= int(tables[byte, state >> 8 * byte & 255])
    return result


def striped(data: bytes, lanes_log: int) -> int:
    """What the GPU's lanes do, one after the other."""
    words = np.frombuffer(data[: len(data) // 4 * 4], np.uint32)
    lanes = 1 << lanes_log
    rounds = -(-len(words) // lanes)
    padded = np.concatenate([np.zeros(rounds * lanes - len(words), np.uint32), words])
    total = 0
    for lane in range(lanes):
        state = 0
        for word in padded[lane::lanes]:
            state = move_on(state, lanes_log) ^ int(word)
        rest = lanes - lane
        for power in range(lanes_log + 1):
            if rest >> power & 1:
                state = move_on(state, power)
        total ^= state
    return finish_checksum(total, data[len(words) * 4 :], len(data))


@given(st.binary(max_size=300), st.integers(0, 4))
def test_stripes_of_words_add_up_to_zlibs_checksum(data: bytes, lanes_log: int) -> None:
    assert striped(data, lanes_log) == zlib.crc32(data)


@given(st.integers(0, 1 << 16))
def test_the_checksum_of_zeros_needs_no_zeros(count: int) -> None:
    assert checksum_of_zeros(count) == zlib.crc32(bytes(count))
