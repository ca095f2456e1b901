"""Calls stand in the dump as the user wrote them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.store import RankDump
from torch_abilities import tells_of_indexing


def capture(folder: Path, run: object) -> RankDump:
    debugger = PrecisionDebugger(dump_path=folder, level="L1")
    debugger.start()
    run()  # type: ignore[operator]
    debugger.stop()
    debugger.step()
    return open_dump(folder).parts[0]


def test_operators_keep_their_spelling(tmp_path: Path) -> None:
    x, y, n = torch.ones(3), torch.full((3,), 2.0), torch.arange(3)
    is_indexing_told = tells_of_indexing()

    def run() -> None:
        z = x + y
        z = x.add(y)
        z = 2 + x
        z = 3 * y - x
        z = 1 - x
        z = 1 / x
        z += 1
        z *= y
        z -= x
        _ = (-x, x @ y, x / y, x**2, x % 2, x // 2, n & 1, n | 1, n ^ 1, n << 1, ~n)
        _ = (x > y, x <= y, x != y, x == y)
        if is_indexing_told:
            n[0]

    names = list(capture(tmp_path, run).names)
    assert [name.removeprefix("Tensor.").partition(".")[0] for name in names] == [
        *("__add__", "add", "__radd__", "__rmul__", "__sub__", "__rsub__", "__rdiv__"),
        *("__iadd__", "__imul__", "__isub__"),
        *("__neg__", "__matmul__", "__truediv__", "__pow__", "__mod__", "__floordiv__"),
        *("__and__", "__or__", "__xor__", "__lshift__", "__invert__"),
        *("__gt__", "__le__", "__ne__", "__eq__"),
        *(("__getitem__",) if is_indexing_told else ()),
    ]


def test_arguments_stand_in_order_or_by_name_as_they_were_written(tmp_path: Path) -> None:
    x, weight = torch.randn(2, 4), torch.ones(4)

    def run() -> None:
        F.layer_norm(x, (4,), weight, None, 1e-5)
        F.layer_norm(x, normalized_shape=(4,), weight=weight)
        x.split(2, dim=-1)
        F.relu(x, inplace=False)
        F.softmax(x, -1)

    part = capture(tmp_path, run)

    def shape_of(name: str) -> tuple[int, list[str]]:
        call = part.call(name)
        return len(call.inputs or ()), list(call.kwargs or {})

    assert shape_of("Functional.layer_norm.0.forward") == (5, [])
    assert shape_of("Functional.layer_norm.1.forward") == (1, ["normalized_shape", "weight"])
    assert shape_of("Tensor.split.0.forward") == (2, ["dim"])
    assert shape_of("Functional.relu.0.forward") == (1, ["inplace"])
    assert shape_of("Functional.softmax.0.forward") == (2, [])


def test_an_lstm_is_vf_with_nested_names(tmp_path: Path) -> None:
    lstm = torch.nn.LSTM(3, 4)
    part = capture(tmp_path, lambda: lstm(torch.randn(5, 2, 3)))
    names = [leaf.name for leaf in part.call("VF.lstm.0.forward").leaves()]
    assert "VF.lstm.0.forward.input.1.0" in names and "VF.lstm.0.forward.output.2" in names


def test_nothing_that_only_asks_is_recorded(tmp_path: Path) -> None:
    def run() -> None:
        x: Tensor = torch.ones(2, 3)
        _ = (x.shape, x.size(), x.dim(), x.numel(), x.dtype, x.device, x.is_contiguous(), len(x))
        _ = (torch.sym_max(x.shape[0], 2), torch.sym_int(2.5), torch.sym_not(x.dim() == 1))

    assert list(capture(tmp_path, run).names) == ["Torch.ones.0.forward"]


@pytest.mark.parametrize("wraps", [False, True])
def test_a_function_that_somebody_replaced_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wraps: bool
) -> None:
    original = F.silu

    def larger(*args: Any, **kwargs: Any) -> torch.Tensor:
        return original(*args, **kwargs) * 1.5

    replacement = functools.wraps(original)(larger) if wraps else larger
    monkeypatch.setattr(F, "silu", replacement)
    x, layer = torch.ones(3), torch.nn.SiLU()
    expected = layer(x)
    with PrecisionDebugger(dump_path=tmp_path, level="L1"):
        got = layer(x)
    assert torch.equal(got, expected)
    assert {"Functional.silu.0.forward", "Tensor.__mul__.0.forward"} <= set(
        open_dump(tmp_path).parts[0].names
    )
