"""On a GPU: the numbers are right, and a captured run is the run itself."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import pytest
import torch

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import TensorValue
from tensorprobe.store.tensor_files import TakenNames, TensorFiles
from tensorprobe.summary.checksum import ChecksumQueue
from tensorprobe.summary.host import fetch, send
from tensorprobe.summary.statistics import StatisticsQueue, release_tables

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
        for one, other in zip(found, wanted, strict=True):
            assert one == (other if other is None else pytest.approx(other, rel=1e-5, abs=1e-6))


def test_memory_that_stands_for_its_negative_is_negated(tmp_path: Path) -> None:
    numbers = torch.tensor([1 + 2j, 3 + 4j], device="cuda")
    negated = numbers.conj().imag
    assert negated.is_neg()
    # Twice, and without a base: compiled code takes over where the kernel is known.
    tensors = (negated, negated.clone().neg_(), negated.detach(), numbers.real)
    with PrecisionDebugger(dump_path=tmp_path, level="L1"):
        for tensor in tensors:
            tensor.abs()
    (part,) = open_dump(tmp_path).parts
    found = [(part.call(f"Tensor.abs.{n}.forward").inputs or ())[0] for n in range(4)]
    assert [(v.min, v.max) for v in found if isinstance(v, TensorValue)] == [
        *((-4.0, -2.0), (2.0, 4.0), (-4.0, -2.0), (1.0, 3.0)),
    ]


def test_a_table_serves_one_queue_after_the_other_until_it_is_full() -> None:
    release_tables()
    made = []
    for round_number in range(4):
        queue = StatisticsQueue()
        tensors = [torch.full((64,), float(n + round_number), device="cuda") for n in range(3000)]
        asked = [queue.ask(tensor) for tensor in tensors]
        made.append(next(iter(queue._tables.values())))
        while queue.fetch():
            pass
        queue.rest()
        for n, measured in enumerate(asked):
            value = float(n + round_number)
            assert measured.numbers == pytest.approx((value, value, value, 8 * value))
    # A table has 8192 rows: the third queue needs another one.
    assert made[0] is made[1] is not made[3]
    release_tables()


def split_layouts(values: torch.Tensor) -> list[torch.Tensor]:
    """Return views of four dimensions' numbers that do not lie one behind the other."""
    parts = values.split(values.shape[-1] // 4, dim=-1)
    return [
        *parts,
        parts[1].transpose(0, 2),
        values[:, :, 1:3],
        values[:, 1:, :, :],
        values[..., 1:],
        values[..., ::2],
        values.permute(3, 1, 0, 2),
        values[:, :1].expand(-1, 3, -1, -1),
        values[0, 0, 0, :64],
        values[0, 0, 0],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("width", [4, 64, 256, 1024, 4160, 20_480])
def test_parts_of_a_tensor_are_measured_where_they_lie(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(width)
    host = (torch.randn(3, 5, 7, width) * 3).to(dtype)
    host[1, 2, 3, width // 2] = 100
    # Twice: compiled code takes over where the kernels are known.
    for _ in range(2):
        queue = StatisticsQueue()
        asked = [queue.ask(part) for part in split_layouts(host.cuda())]
        while queue.fetch():
            pass
        queue.rest()
        for measured, part in zip(asked, split_layouts(host), strict=True):
            wanted = StatisticsQueue().ask(part).numbers
            assert wanted is not None and measured.numbers is not None
            for one, other in zip(measured.numbers, wanted, strict=True):
                assert one == (None if other is None else pytest.approx(other, rel=1e-4, abs=1e-4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [0.0, -0.0, -2.5, 3.0, math.inf, -math.inf, math.nan])
def test_a_tensor_without_dimensions_is_its_own_numbers(dtype: torch.dtype, value: float) -> None:
    single = torch.tensor(value, dtype=dtype, device="cuda")
    queue = StatisticsQueue()
    asked = [queue.ask(tensor) for tensor in (single, single, single.expand(4), single.view(1))]
    while queue.fetch():
        pass
    for measured in asked[:2]:
        assert repr(measured.numbers) == repr((value,) * 4)
    norms = (2 * abs(value), abs(value))
    for measured, norm in zip(asked[2:], norms, strict=True):
        assert measured.numbers == pytest.approx((value, value, value, norm), nan_ok=True)


def test_truths_have_no_mean() -> None:
    mask = torch.ones(1024, 1024, dtype=torch.bool, device="cuda").triu(1)
    queue = StatisticsQueue()
    tensors = (mask, mask[:1], mask[1:2, :1], mask.t(), torch.tensor(True, device="cuda"))
    asked = [queue.ask(tensor) for _ in range(2) for tensor in tensors]
    while queue.fetch():
        pass
    wanted = [(True, False), (True, False), (False, False), (True, False), (True, True)]
    assert [measured.numbers for measured in asked] == [(*w, None, None) for w in wanted * 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8])
@pytest.mark.parametrize("count", [1, 5, 1024, 8192, 3_000_000])
def test_whole_numbers_on_the_device_are_measured(dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(count)
    host = torch.randint(0, 100, (count,)).to(dtype)
    device = host.cuda()
    queue = StatisticsQueue()
    asked = [queue.ask(tensor) for tensor in (device, device.view(1, -1).t(), device[::2])]
    while queue.fetch():
        pass
    for measured, tensor in zip(asked, (host, host, host[::2]), strict=True):
        wide = tensor.double()
        expected = (wide.max(), wide.min(), wide.mean(), wide.norm())
        assert measured.numbers == pytest.approx(tuple(float(x) for x in expected))


def test_large_whole_numbers_lose_no_digit() -> None:
    values = torch.tensor([2**40 + 1, 7, -(2**50) - 1], device="cuda")
    queue = StatisticsQueue()
    asked = [queue.ask(tensor) for tensor in (values, values, values[0])]
    while queue.fetch():
        pass
    for measured in asked[:2]:
        assert measured.numbers is not None
        high, low, mean, norm = measured.numbers
        assert (high, low) == (2**40 + 1, -(2**50) - 1)
        assert mean == (2**40 + 7 - 2**50) / 3
        assert norm == pytest.approx(math.hypot(2.0**40, 2.0**50))
    assert asked[2].numbers == (2.0**40 + 1,) * 4


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


def data_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        path.stem: torch.load(path, weights_only=True)
        for path in folder.rglob("dump_tensor_data/*.pt")
    }


# 1 MiB: the host waits for room; 96 MiB are more than the copies of our own may take.
@pytest.mark.parametrize(("budget", "rows"), [(1 << 20, 1000), (1 << 29, 1000), (1 << 29, 6000)])
def test_later_work_on_the_device_does_not_change_what_was_saved(
    tmp_path: Path, budget: int, rows: int
) -> None:
    losses: list[str] = []
    files = TensorFiles(
        tmp_path, "pt", TakenNames(), lambda what, err: losses.append(f"{what}: {err}")
    )
    transport = TensorTransport(budget, part=1 << 20)
    tensor = torch.zeros(rows, 4096, device="cuda")
    for number in range(12):
        tensor.fill_(number)
        file = files.promise(str(number), DTYPES["torch.float32"], tuple(tensor.shape))
        assert file is not None
        transport.save(tensor, file)
        # At once after it, on the same stream; and memory that is free now is used again.
        tensor.fill_(-1)
        torch.full((rows, 4096), -2.0, device="cuda")
    transport.drain()
    assert losses == []
    for number in range(12):
        assert (torch.load(tmp_path / f"{number}.pt", weights_only=True) == number).all()


def test_what_another_stream_computes_is_waited_for(tmp_path: Path) -> None:
    files = TensorFiles(tmp_path, "pt", TakenNames(), lambda what, err: pytest.fail(what))
    transport = TensorTransport(1 << 28)
    other = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        b = a
        for _ in range(20):
            b = torch.tanh(b @ a)
        file = files.promise("b", DTYPES["torch.float32"], tuple(b.shape))
        assert file is not None
        transport.save(b, file)
        expected = b.clone()
        b.zero_()
    transport.drain()
    torch.cuda.synchronize()
    assert torch.equal(torch.load(tmp_path / "b.pt", weights_only=True), expected.cpu())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(40, 30, 20).permute(2, 0, 1),
        lambda: torch.randn(99).bfloat16(),
        lambda: torch.randn(99) > 0,
        lambda: torch.randn(99, dtype=torch.complex64).conj(),
        lambda: torch.arange(7.0).expand(50, 7),
        lambda: torch.tensor(2.5),
        lambda: torch.empty(0, 3),
    ],
)
def test_data_of_every_layout_and_type_come_over(tmp_path: Path, make: object) -> None:
    assert callable(make)
    tensor = make()
    files = TensorFiles(tmp_path, "pt", TakenNames(), lambda what, err: pytest.fail(what))
    transport = TensorTransport(1 << 24, part=4096)
    file = files.promise("a", DTYPES[str(tensor.dtype)], tuple(tensor.shape))
    assert file is not None
    transport.save(tensor.cuda(), file)
    transport.drain()
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert torch.equal(loaded, tensor.resolve_conj().resolve_neg())


def test_saving_does_not_wait_for_the_device(tmp_path: Path) -> None:
    files = TensorFiles(tmp_path, "pt", TakenNames(), lambda what, err: pytest.fail(what))
    transport = TensorTransport(1 << 29)
    tensor = torch.randn(1 << 20, device="cuda")
    for number in range(3):
        file = files.promise(f"warm{number}", DTYPES["torch.float32"], tuple(tensor.shape))
        assert file is not None
        transport.save(tensor, file)
    transport.drain()
    torch.cuda.synchronize()
    start = torch.cuda.Event(enable_timing=True)
    # About half a second of work that a wait would have to sit out.
    torch.cuda._sleep(1_000_000_000)
    start.record()
    file = files.promise("a", DTYPES["torch.float32"], tuple(tensor.shape))
    assert file is not None
    transport.save(tensor, file)
    assert not start.query(), "the host was here before the device"
    transport.drain()
    assert torch.equal(torch.load(tmp_path / "a.pt", weights_only=True), tensor.cpu())


def test_a_captured_step_keeps_the_data_that_each_call_saw(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L1")
    x = torch.full((512, 512), -2.0, device="cuda")
    debugger.start()
    for _ in range(50):
        x.add_(1)
        x.mul_(2)
    debugger.stop()
    debugger.step()
    debugger.close()
    data = data_of(tmp_path)
    expected = torch.full((512, 512), -2.0)
    for number in range(50):
        assert torch.equal(data[f"Tensor.add_.{number}.forward.input.0"], expected)
        expected += 1
        assert torch.equal(data[f"Tensor.add_.{number}.forward.output.0"], expected)
        expected *= 2
        assert torch.equal(data[f"Tensor.mul_.{number}.forward.output.0"], expected)
    part = open_dump(tmp_path).parts[0]
    assert part.gaps == ()
    values = [
        leaf.value for call in part for leaf in call.leaves() if isinstance(leaf.value, TensorValue)
    ]
    assert values and all(value.data_name is not None for value in values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("rows", [3, 1 << 10, (1 << 15) + 3])
def test_tensors_of_all_sizes_go_to_the_device_and_come_back(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    values = (torch.randn(rows, 1027) * 3).to(dtype)
    there = send(values, torch.device("cuda"))
    assert there.is_cuda and torch.equal(there.cpu(), values)
    assert torch.equal(fetch(there), values)
    assert torch.equal(fetch(there.t()), values.t())
    assert torch.equal(send(values.t(), torch.device("cuda")).cpu(), values.t())
    if dtype.is_complex:
        assert torch.equal(fetch(there.conj()), values.conj().resolve_conj())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_calls_inside_transforms_have_their_numbers(tmp_path: Path, task: str) -> None:
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0)).cuda()

    def loss(row: torch.Tensor) -> torch.Tensor:
        return torch.sin(row.t() * 2).sum()

    expected = torch.func.vmap(torch.func.grad(loss))(x)
    debugger = PrecisionDebugger(dump_path=tmp_path, task=task)
    debugger.start()
    found = torch.func.vmap(torch.func.grad(loss))(x)
    debugger.stop()
    debugger.step()
    debugger.close()
    assert torch.equal(found, expected)
    assert not list(tmp_path.rglob("dump_error_info.log"))
    (given,) = open_dump(tmp_path).part(step=0).call("Torch.sin.0.forward").inputs or ()
    assert isinstance(given, TensorValue)
    assert given.shape == (5, 4, 2)
    assert given.max == (x * 2).max().item()
