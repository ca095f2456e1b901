"""Calls stand in the dump as the user wrote them."""

from __future__ import annotations

import functools
import operator
import weakref
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


class Scaled(torch.nn.Module):
    """Numbers left and right of operators, in every way of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.weight = 1.5, torch.nn.Parameter(torch.ones(3))

    def reflected(self, x: Tensor, n: Tensor) -> None:
        scale, found = 2.0, 0
        _ = (2 * (x - x), 1.0 + torch.tanh(x), 2 * self.weight, 3 * {"x": x}["x"])
        _ = (scale * x, scale * (x - x), self.gain * x, self.gain * self.weight)
        _ = (GAIN * x, GAIN * x.relu(), 3 & n, 1 | n, 1 ^ n)
        _ = found + x.sum()
        if scale > 1:
            x = x.neg()
        _ = 0.5 * x.mean()

    def in_order(self, x: Tensor, n: Tensor) -> None:
        scale = 2.0
        _ = ((x - x) * 2, torch.tanh(x) + 1.0, self.weight * 2, {"x": x}["x"] * 3)
        _ = (x * scale, (x - x) * scale, x * self.gain, self.weight * self.gain)
        _ = (x * GAIN, x.relu() * GAIN, n & 3, n | 1, n ^ 1, x * (2 if scale else 3))
        if scale > 1:
            x = x.neg()
        _ = x.mean() * 0.5


GAIN = 0.5


@pytest.mark.parametrize("is_reflected", [True, False])
def test_a_number_before_the_operator_is_told_from_one_behind_it(
    tmp_path: Path, is_reflected: bool
) -> None:
    model, x, n = Scaled(), torch.ones(3), torch.arange(3)
    run = model.reflected if is_reflected else model.in_order
    names = [name.split(".")[1] for name in capture(tmp_path, lambda: run(x, n)).names]
    operators = [name for name in names if name.startswith("__") and name != "__sub__"]
    assert len(operators) == 15
    assert [name.startswith("__r") for name in operators] == [is_reflected] * 15


def test_variables_are_looked_at_and_not_kept(tmp_path: Path) -> None:
    def run() -> None:
        x, scale = torch.ones(3), 2.0
        known = weakref.ref(x)
        _ = (scale * x, scale * x.relu(), x * scale)
        del x
        assert known() is None

    names = [name.split(".")[1] for name in capture(tmp_path, run).names]
    assert names == ["ones", "__rmul__", "relu", "__rmul__", "__mul__"]


def test_what_the_user_got_from_locals_stays_his(tmp_path: Path) -> None:
    def run() -> None:
        x, scale = torch.ones(3), 2.0
        mine = locals()
        _ = (scale * x, scale * x.relu(), x * scale)
        assert mine["x"] is x and mine["scale"] == 2.0

    capture(tmp_path, run)


def test_what_exec_made_in_a_function_stays_there(tmp_path: Path) -> None:
    def run() -> None:
        x, scale = torch.ones(3), 2.0
        exec("factor = 3")
        before = "factor" in locals()
        _ = (scale * x, scale * x.relu())
        assert ("factor" in locals()) == before

    capture(tmp_path, run)


def test_functions_have_the_name_that_users_know_them_by(tmp_path: Path) -> None:
    x, image = torch.randn(2, 4), torch.randn(1, 1, 4, 4)
    slope = torch.nn.PReLU()

    def run() -> None:
        F.conv2d(image, image[:, :, :2, :2])
        slope(x)
        F.logsigmoid(x)
        F.threshold(x, 0.1, 0.0)
        F.max_pool2d(image, 2)
        F.max_pool2d(image, 2, return_indices=True)
        torch.nn.PixelShuffle(2)(torch.ones(1, 4, 2, 2))
        F.gelu(x)
        torch.tanh(x)

    names = [".".join(name.split(".")[:2]) for name in capture(tmp_path, run).names]
    assert [name for name in names if name not in ("Tensor.__getitem__", "Torch.ones")] == [
        *("Functional.conv2d", "Functional.prelu", "Functional.logsigmoid"),
        *("Functional.threshold", "Functional.max_pool2d", "Functional.max_pool2d"),
        *("Functional.pixel_shuffle", "Functional.gelu", "Torch.tanh"),
    ]


def test_nothing_that_a_call_was_given_is_lost_where_it_was_not_written_there(
    tmp_path: Path,
) -> None:
    x, weight = torch.randn(2, 4, requires_grad=True), torch.ones(4, requires_grad=True)

    def run() -> None:
        functools.partial(F.softmax, dim=0)(x)
        list(map(F.softmax, [x], [1]))
        operator.methodcaller("split", 2, dim=1)(x)
        normed = functools.partial(F.layer_norm, normalized_shape=(4,), weight=weight)(x)
        functools.partial(F.layer_norm, x, (4,))(weight)
        given = {"normalized_shape": (4,), "eps": 0.1}
        F.layer_norm(x, **given)
        normed.sum().backward()

    calls = {call.name: call for call in capture(tmp_path, run)}

    def named(name: str) -> list[str]:
        return list(calls[name].kwargs or {})

    assert named("Functional.softmax.0.forward") == ["dim"]
    assert named("Functional.softmax.1.forward") == ["dim"]
    assert named("Tensor.split.0.forward") == ["dim"]
    assert named("Functional.layer_norm.0.forward") == ["weight"]
    assert named("Functional.layer_norm.1.forward") == ["weight"]
    assert named("Functional.layer_norm.2.forward") == ["eps"]
    assert len(calls["Functional.layer_norm.0.backward"].outputs or ()) == 2


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
        if hasattr(torch, "sym_sqrt"):
            torch.sym_sqrt(4.0)

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
