"""On a GPU: the numbers are right, and a captured run is the run itself."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import pytest
import torch

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.summary.checksum import ChecksumQueue
from tensorprobe.summary.statistics import StatisticsQueue

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(1,), (7,), (4097,), (3, 5, 7), (1000, 1000), (0, 3), ()])
def test_statistics_on_the_device_are_those_of_the_host(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    values = (torch.randn(shape) * 3).to(dtype)
    queue = StatisticsQueue()
    wanted = queue.ask(values).numbers
    asked = queue.ask(values.cuda())
    permuted = queue.ask(values.cuda().t()) if values.ndim == 2 else asked
    queue.fetch()
    for found in (asked.numbers, permuted.numbers):
        assert wanted is not None and found is not None
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_visible(bad: float) -> None:
    values = torch.randn(10_000, device="cuda")
    values[1234] = bad
    queue = StatisticsQueue()
    asked = queue.ask(values)
    queue.fetch()
    expected = (
        values.max().item(),
        values.min().item(),
        values.mean().item(),
        values.norm().item(),
    )
    assert asked.numbers == pytest.approx(expected, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 1023, 4096, 100_003, 5_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_checksums_on_the_device_are_zlibs(dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(count)
    values = torch.randint(0, 255, (count,), dtype=torch.uint8).to(dtype).cuda()
    odd = values[1:] if count > 1 else values
    strided = values[: count // 2 * 2].reshape(-1, 2).t()
    queue = ChecksumQueue()
    asked = [(tensor, queue.ask(tensor)) for tensor in (values, odd, strided)]
    queue.fetch()
    for tensor, checked in asked:
        data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert checked.value == zlib.crc32(data)


def test_a_captured_step_is_bit_identical_and_complete(tmp_path: Path) -> None:
    def train(level: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [
            torch.nn.Linear(64, 64),
            torch.nn.GELU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(64, 8),
        ]
        model = torch.nn.Sequential(*layers).cuda().bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        debugger = (
            PrecisionDebugger(dump_path=tmp_path / str(level), level=level) if level else None
        )
        for _ in range(3):
            if debugger:
                debugger.start(model)
            model(torch.randn(32, 64, device="cuda").bfloat16()).float().square().mean().backward()
            if debugger:
                debugger.stop()
            optimizer.step()
            if debugger:
                debugger.step()
        return [p.detach().cpu() for p in model.parameters()] + [torch.cuda.get_rng_state()]

    bare = train(None)
    for level in ("L0", "L1", "mix"):
        for mine, wanted in zip(train(level), bare, strict=True):
            assert torch.equal(mine, wanted)
        dump = open_dump(tmp_path / level)
        assert len(dump.parts) == 3 and dump.gaps == ()
        assert any(call.name.endswith("backward") or ".backward." in call.name for call in dump)
