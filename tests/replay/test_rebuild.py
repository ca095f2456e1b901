"""A captured call comes back with the arguments that it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.errors import RebuildError
from tensorprobe.records import (
    CallRecord,
    DeviceValue,
    DictValue,
    ListValue,
    ScalarValue,
    TensorValue,
    UnknownValue,
)
from tensorprobe.replay.rebuild import load_tensor, rebuild_call
from tensorprobe.replay.users import import_modules
from tensorprobe.store import RankDump


def captured(folder: Path, run: Callable[[], Any]) -> RankDump:
    debugger = PrecisionDebugger(dump_path=str(folder), task="tensor", level="L1")
    debugger.start()
    run()
    debugger.stop()
    debugger.step()
    return open_dump(folder).part()


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(dtype)


CALLS: list[Callable[[], Any]] = [
    lambda: functional.linear(x(4, 3), x(2, 3), bias=x(2)),
    lambda: x(4, 5, 6)[1:3, ..., None, 0],
    lambda: x(4, 5, 6)[[0, 2]],
    lambda: x(4, 5, 6)[0, 2],
    lambda: x(4, 5)[x(4, 5) > 0],
    lambda: x(4, 5)[torch.tensor([0, 3]), 1:],
    lambda: torch.cat([x(2, 3), x(1, 3)], dim=0),
    lambda: x(2, 3).to(torch.float64),
    lambda: x(2, 3).to("cpu", torch.bfloat16),
    lambda: torch.zeros(2, 3, dtype=torch.float16, device=torch.device("cpu")),
    lambda: torch.empty_like(x(2, 3, 4, 4), memory_format=torch.channels_last).fill_(1),
    lambda: x(2, 3).reshape(torch.Size([3, 2])),
    lambda: x(2, 6).view(x(2, 6).size()[:1] + torch.Size([3, -1])),
    lambda: torch.max(x(4, 5), dim=1, keepdim=True),
    lambda: functional.scaled_dot_product_attention(
        x(1, 2, 4, 8), x(1, 2, 4, 8), x(1, 2, 4, 8), is_causal=True
    ),
    lambda: functional.pad(x(2, 3), (1, 2), value=float("-inf")),
    lambda: 2 - x(3),
    lambda: x(3) ** 2,
    lambda: 2 * x(3),
    lambda: x(3, 4) @ x(4, 2),
    lambda: x(3).mul_(2.5),
    lambda: x(3, dtype=torch.bfloat16) + x(3, dtype=torch.bfloat16),
    lambda: x(3, dtype=torch.float8_e4m3fn).to(torch.float32),
    lambda: x(3) * np.float32(0.5),
    lambda: x(3, 4).T,
    lambda: torch.einsum("ij,jk->ik", x(2, 3), x(3, 2)),
    lambda: torch.linalg.norm(x(3, 3), ord="fro", dim=(0, 1)),
    lambda: torch.fft.fft(x(8)),
    lambda: torch.ops.aten.add.Tensor(x(3), x(3), alpha=2),
    lambda: torch.lstm(
        x(2, 1, 3), (x(1, 1, 4), x(1, 1, 4)), [x(16, 3), x(16, 4)],
        False, 1, 0.0, False, False, False,
    ),
    lambda: functional.interpolate(x(1, 1, 4, 4), scale_factor=(2.0, 2.0), mode="bilinear"),
    lambda: x(4, 6).split([2, 4], dim=1),
    lambda: x(2, 3).is_pinned,
    lambda: torch.complex(x(3), x(3)) * (1 + 2j),
    lambda: x(4) > 0,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_the_same_call_gives_the_recorded_result(tmp_path: Path, number: int) -> None:
    part = captured(tmp_path, CALLS[number])
    for call in part:
        assert call.outputs is not None
        rebuilt = rebuild_call(call, lambda value: load_tensor(part, value))
        result = rebuilt.run()
        values = result if isinstance(result, (tuple, list)) else (result,)
        recorded = [
            load_tensor(part, leaf.value)
            for leaf in call.leaves()
            if leaf.section == "output" and isinstance(leaf.value, TensorValue)
        ]
        found = [v for item in values for v in (item if isinstance(item, tuple) else (item,))]
        assert len(found) == len(recorded)
        for ours, theirs in zip(found, recorded, strict=True):
            if call.name.startswith("Torch.empty_like"):
                continue
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_loaded_data_keep_every_bit(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2, torch.complex64, torch.bool):
        bits = torch.randint(0, 2 if dtype is torch.bool else 256, (64,), dtype=torch.uint8)
        tensor = bits.view(dtype)
        part = captured(tmp_path, lambda tensor=tensor: tensor.reshape(-1))  # type: ignore[misc]
        call = next(iter(part))
        assert call.inputs is not None and isinstance(call.inputs[0], TensorValue)
        loaded = load_tensor(part, call.inputs[0])
        assert loaded.dtype is dtype
        assert torch.equal(loaded.view(torch.uint8), tensor.view(torch.uint8))


def test_devices_become_the_one_that_is_asked_for() -> None:
    call = CallRecord(
        "Torch.zeros.0.forward",
        inputs=(ScalarValue("int", 2),),
        kwargs={"device": DeviceValue("cuda:3")},
    )
    assert rebuild_call(call, _no_tensors, device="meta").run().device.type == "meta"
    tensor = TensorValue("torch.float32", (2,))
    for name, more in (
        ("Tensor.to.0.forward", (ScalarValue("str", "npu:0"),)),
        ("Tensor.npu.0.forward", ()),
        ("Tensor.cuda.0.forward", (ScalarValue("int", 1),)),
    ):
        moved = rebuild_call(
            CallRecord(name, inputs=(tensor, *more)), lambda _: torch.zeros(2), device="meta"
        )
        assert moved.run().device.type == "meta"


def test_a_dtype_that_msprobe_lost_is_that_of_the_result() -> None:
    call = CallRecord(
        "Tensor.to.0.forward",
        inputs=(TensorValue("torch.float32", (2,)), DictValue(())),
        outputs=(TensorValue("torch.float64", (2,)),),
    )
    assert rebuild_call(call, lambda _: torch.zeros(2)).run().dtype is torch.float64


@pytest.mark.parametrize(("shape", "expected"), [((2, 5, 6), True), ((6,), False)])
def test_an_index_that_an_older_tool_wrote_as_a_list(
    shape: tuple[int, ...], expected: bool
) -> None:
    call = CallRecord(
        "Tensor.__getitem__.0.forward",
        inputs=(
            TensorValue("torch.float32", (4, 5, 6)),
            ListValue((ScalarValue("int", 0), ScalarValue("int", 2))),
        ),
        outputs=(TensorValue("torch.float32", shape),),
    )
    rebuilt = rebuild_call(call, lambda _: torch.zeros(4, 5, 6))
    assert isinstance(rebuilt.args[1], list) is expected
    assert tuple(rebuilt.run().shape) == shape


def test_peers_dumps_run_again(peer_dumps: Path) -> None:
    """Calls that msprobe captured on real data give what msprobe recorded."""
    folder = peer_dumps / "msprobe-8.2.1"
    parts = [
        part
        for path in sorted(folder.rglob("dump.json"))
        for part in open_dump(path).parts
        if part.info.task == "tensor" and part.info.level in ("L1", "mix")
    ]
    count = 0
    for part in parts:
        for call in part:
            if call.name.startswith("Module") or not call.name.endswith("forward"):
                continue
            if "dropout" in call.name or "Distributed" in call.name or not call.outputs:
                continue
            try:
                result = rebuild_call(call, lambda value, part=part: load_tensor(part, value)).run()  # type: ignore[misc]
            except RebuildError:
                continue
            first = call.outputs[0]
            if isinstance(first, TensorValue) and isinstance(result, torch.Tensor):
                assert str(result.dtype) == first.dtype, call.name
                assert tuple(result.shape) == first.shape, call.name
                count += 1
    assert count > 5


def test_what_is_not_in_the_dump_is_named() -> None:
    call = CallRecord(
        "Torch.rand.0.forward",
        inputs=(ScalarValue("int", 2),),
        kwargs={"generator": UnknownValue("Generator")},
    )
    with pytest.raises(RebuildError, match=r"does not hold input\.generator, a Generator"):
        rebuild_call(call, _no_tensors)
    with pytest.raises(RebuildError, match="holds no inputs"):
        rebuild_call(CallRecord("Torch.rand.0.forward", outputs=()), _no_tensors)


def test_a_missing_data_file_is_a_reason(tmp_path: Path) -> None:
    part = captured(tmp_path, lambda: x(3) + 1)
    call = next(iter(part))
    assert call.inputs is not None and isinstance(call.inputs[0], TensorValue)
    next(tmp_path.rglob("*.input.0.pt")).unlink()
    with pytest.raises(RebuildError, match="does not exist"):
        load_tensor(part, call.inputs[0])


def test_a_module_that_cannot_be_imported_is_named() -> None:
    import_modules(("colorsys",))
    with pytest.raises(RebuildError, match="no_such_module cannot be imported"):
        import_modules(("no_such_module",))


def _no_tensors(value: TensorValue) -> torch.Tensor:
    raise AssertionError(f"no tensor was expected, got {value}")
