"""A tensor's checksum is of its numbers in their order, however it lies in memory."""

from __future__ import annotations

import zlib

import pytest
import torch

from tensorprobe.summary.checksum import ChecksumQueue
from tensorprobe.summary.host import PLAIN_DTYPES, to_host
from tensorprobe.summary.statistics import StatisticsQueue

NOISE = torch.randint(0, 256, (64 * 48 * 16,), generator=torch.Generator().manual_seed(0)).byte()


def by_zlib(tensor: torch.Tensor) -> int:
    return zlib.crc32(to_host(tensor).array.tobytes())


@pytest.mark.parametrize("dtype", sorted(PLAIN_DTYPES, key=str), ids=str)
def test_every_dtype_in_every_layout(dtype: torch.dtype) -> None:
    bits = NOISE % 2 if dtype is torch.bool else NOISE
    tensor = bits.view(dtype).reshape(64, 48, -1)
    queue = ChecksumQueue()
    for seen in (
        tensor,
        tensor.transpose(0, 2),
        tensor[3:9, ::5],
        tensor[:0],
        tensor[1, 2, 0],
        tensor[5:6].expand(7, 48, -1),
    ):
        assert queue.ask(seen).value == by_zlib(seen)


def test_views_that_negate_or_conjugate() -> None:
    numbers = torch.randn(6, 5, dtype=torch.complex64)
    queue = ChecksumQueue()
    for seen in (numbers.conj(), numbers.conj().T, numbers.conj().imag, numbers.conj().imag[0, :1]):
        wanted = seen.resolve_conj().resolve_neg().contiguous()
        assert queue.ask(seen).value == zlib.crc32(wanted.numpy().tobytes())


def test_statistics_of_a_view_that_negates() -> None:
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag[:1]
    assert StatisticsQueue().ask(negated).numbers == (-2.0, -2.0, -2.0, 2.0)


def test_a_tensor_that_needs_a_gradient() -> None:
    weight = torch.nn.Parameter(torch.randn(30, 20))
    queue = ChecksumQueue()
    assert queue.ask(weight).value == by_zlib(weight.data)
    assert queue.ask(weight.t()).value == by_zlib(weight.data.t())
