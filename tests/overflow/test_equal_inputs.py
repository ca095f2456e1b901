"""The backward of a call that was given a tensor at several places: a dump holds the sum there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from overflow_runs import FaultyDevice, search
from tensorprobe import PrecisionDebugger
from tensorprobe.overflow.session import JudgedOverflow

aten = torch.ops.aten
HALF = torch.float16
NOTE = "inputs are equal, perhaps one tensor: the sum of their gradients overflows"


def ones(*, wants_gradient: bool = True) -> torch.Tensor:
    return torch.ones(4, dtype=HALF, requires_grad=wants_gradient)


def send_back(result: torch.Tensor, gradient: float = 40000.0) -> None:
    result.backward(torch.full_like(result, gradient))


def judge(tmp_path: Path, run: Callable[[], Any], **options: Any) -> JudgedOverflow:
    search(tmp_path / "dump", run, **options)
    (overflow,) = tensorprobe.overflow(tmp_path / "dump", tmp_path / "out").overflows
    return overflow


def add_leaf() -> torch.Tensor:
    x = ones()
    return torch.add(x, other=x)


def add_result() -> torch.Tensor:
    h = ones() * 0.5
    return h + h


def square() -> torch.Tensor:
    h = ones() * 1
    return h * h


def in_a_list() -> torch.Tensor:
    x = ones()
    return torch.cat([x, ones(), ones(wants_gradient=False), x])


@pytest.mark.parametrize("make", [add_leaf, add_result, square, in_a_list])
def test_the_sum_over_the_places_of_one_tensor_is_what_overflows(
    make: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    overflow = judge(tmp_path, lambda: send_back(make()))
    assert overflow.shown.endswith(".backward")
    assert (overflow.verdict, overflow.replay.on_cpu) == ("normal", "overflows")
    assert overflow.replay.exact == "up to 80000 in torch.float32, beyond torch.float16 (65504)"
    assert overflow.replay.message == NOTE


def test_a_gradient_that_overflows_by_itself_needs_no_sum(tmp_path: Path) -> None:
    x = ones()
    overflow = judge(tmp_path, lambda: send_back(torch.sub(x, x, alpha=2)))
    assert (overflow.verdict, overflow.replay.message) == ("normal", "")


def test_a_fault_stays_a_fault_where_the_sum_fits(tmp_path: Path) -> None:
    def run() -> None:
        h = ones() * 1
        with FaultyDevice(aten.mul.Tensor):
            send_back(h * h.detach().requires_grad_(), 1.0)

    search(tmp_path / "dump", run)
    report = tensorprobe.overflow(tmp_path / "dump", tmp_path / "out")
    verdicts = {overflow.shown: overflow.verdict for overflow in report.overflows}
    assert verdicts["Tensor.__mul__.1.backward"] == "abnormal"


def test_equal_inputs_with_other_gradients_are_several_tensors(tmp_path: Path) -> None:
    """The fault is in the gradient of one, so it is no sum over both."""
    x, y = ones(), ones()

    def run() -> None:
        product = torch.sub(x, y)
        with FaultyDevice(aten.neg.default):
            send_back(product)

    overflow = judge(tmp_path, run)
    assert (overflow.verdict, overflow.replay.on_cpu) == ("abnormal", "finite")


def test_without_data_equal_numbers_will_do(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump")
    debugger.start()
    send_back(add_leaf())
    debugger.stop()
    debugger.close()
    (overflow,) = tensorprobe.overflow(tmp_path / "dump", tmp_path / "out").overflows
    assert overflow.verdict == "normal"
    assert overflow.replay.message == f"{NOTE}; with random data within the recorded range"
