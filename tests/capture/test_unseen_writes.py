"""Some functions of torch write without raising a version: what is recorded after them is true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from debugged import BOTH_WAYS, debugger_of_modules
from torch import Tensor, nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.operations.facts import WRITES_UNSEEN
from tensorprobe.records import TensorValue, Value


def largest(value: Value) -> float:
    assert isinstance(value, TensorValue) and isinstance(value.max, float)
    return value.max


def capture(folder: Path, listed: tuple[str, ...], run: Callable[[], object]) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({"level": "L1", "statistics": {"list": listed}}))
    with PrecisionDebugger(config, dump_path=folder / "dump"):
        run()
    return folder / "dump"


@BOTH_WAYS
def test_gradients_that_a_scaler_has_unscaled(tmp_path: Path, listed: tuple[str, ...]) -> None:
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("scales gradients on a GPU alone")
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")

    def run() -> float:
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        grad = model.weight.grad
        assert grad is not None
        torch.abs(grad)
        return float(grad.max())

    expected: list[float] = []
    dump = capture(tmp_path, listed, lambda: expected.append(run()))
    call = open_dump(dump).parts[0].call("Torch.abs.0.forward")
    assert call.inputs is not None and largest(call.inputs[0]) == expected[0] == 2.0


@BOTH_WAYS
def test_running_statistics_inside_a_function_of_the_users_own(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    images = torch.arange(12.0).reshape(4, 3)

    class Own:
        @staticmethod
        def normalise(images: Tensor) -> Tensor:
            return nn.functional.batch_norm(images, mean, variance, training=True)

    def run() -> None:
        PrecisionDebugger.register_custom_api(Own, "normalise")
        torch.abs(mean)
        Own.normalise(images)
        torch.abs(mean)

    dump = capture(tmp_path, listed, run)
    part = open_dump(dump).parts[0]
    assert "Own.normalise.0.forward" in part.names
    before, after = (part.call(f"Torch.abs.{number}.forward").inputs for number in range(2))
    assert before is not None and after is not None
    assert (largest(before[0]), largest(after[0])) == (0.0, float(mean.max()))


@BOTH_WAYS
def test_parameters_after_a_fused_step(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = nn.Linear(3, 2)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    except RuntimeError:
        pytest.skip("no fused optimizer on this device")

    def run() -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 3))

    dump = capture(tmp_path, listed, run)
    call = open_dump(dump).parts[0].call("Functional.linear.1.forward")
    assert call.inputs is not None
    assert largest(call.inputs[1]) == model.weight.max().item()


@BOTH_WAYS
def test_parameters_of_another_type(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = nn.Linear(2, 2)
    with debugger_of_modules(tmp_path, listed, model):
        model(torch.ones(1, 2))
        model.double()
        model(torch.ones(1, 2, dtype=torch.float64))
    call = open_dump(tmp_path / "dump").parts[0].call("Module.Linear.forward.1")
    assert call.parameters is not None
    types = {v.dtype for v in call.parameters.values() if isinstance(v, TensorValue)}
    assert types == {"torch.float64"}


@BOTH_WAYS
def test_what_a_function_of_python_wrote_element_by_element(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    def run() -> None:
        x = torch.ones(3)
        x.apply_(lambda value: value + 1)
        torch.abs(x)
        x.map_(torch.ones(3), lambda one, other: one + other)
        torch.abs(x)

    dump = capture(tmp_path, listed, run)
    part = open_dump(dump).parts[0]
    inputs = (part.call(f"Torch.abs.{number}.forward").inputs or () for number in range(2))
    assert [largest(given[0]) for given in inputs] == [2.0, 3.0]


@BOTH_WAYS
def test_parameters_that_are_set_from_a_vector(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = nn.Linear(1, 1, bias=False)
    vector = torch.zeros(1)

    def run() -> None:
        for number in range(3):
            # The parameter lies in the vector's memory, and has a version of its own.
            vector.fill_(number)
            nn.utils.vector_to_parameters(vector, model.parameters())
            torch.abs(model.weight)

    dump = capture(tmp_path, listed, run)
    part = open_dump(dump).parts[0]
    inputs = (part.call(f"Torch.abs.{number}.forward").inputs or () for number in range(3))
    assert [largest(given[0]) for given in inputs] == [0.0, 1.0, 2.0]


@BOTH_WAYS
def test_parameters_that_were_given_other_data(tmp_path: Path, listed: tuple[str, ...]) -> None:
    model = nn.Linear(2, 2, bias=False)
    first, *others = (torch.full((size, 2), float(size)) for size in (2, 3, 1))
    model.weight.data = first
    with debugger_of_modules(tmp_path, listed, model):
        model(torch.ones(1, 2))
        for data in others:
            model.weight.data = data
            model(torch.ones(1, 2))
    part = open_dump(tmp_path / "dump").parts[0]
    for number, size in enumerate((2, 3, 1)):
        call = part.call(f"Module.Linear.forward.{number}")
        weight = (call.parameters or {})["weight"]
        assert isinstance(weight, TensorValue) and weight.shape == (size, 2)
        assert largest(weight) == size


def test_the_functions_are_torchs() -> None:
    homes = (torch, torch.nn.functional, torch.ops.aten, Tensor)
    unknown = {n for n in WRITES_UNSEEN if not any(hasattr(home, n) for home in homes)}
    # Older torch has no fused optimizers but one or two.
    assert unknown <= {"_fused_adagrad_", "_fused_sgd_", "_batch_norm_with_update"}
