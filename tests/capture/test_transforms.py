"""What happens inside the transforms of torch.func has its numbers, and nothing of it changes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import BOTH_WAYS
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap

from tensorprobe import PrecisionDebugger
from tensorprobe.capture.transforms import is_transforming, without_transforms
from tensorprobe.config import load_config
from tensorprobe.errors import RebuildError
from tensorprobe.records import CallRecord, TensorValue, Value
from tensorprobe.replay.rebuild import load_tensor, rebuild_call
from tensorprobe.store import open_dump
from torch_abilities import has_tangents_under_dispatch_modes

# torch's forward mode compiles its rules so, in its own code.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")

BATCH = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).t()


def write_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.mul_(3)
    y[0] = 7.0
    return y.sum(0)


class Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient * 2 * ctx.saved_tensors[0]


def backward_through_vmap() -> torch.Tensor:
    x = BATCH.clone().requires_grad_()
    vmap(lambda row: torch.tanh(row @ WEIGHT).sum())(x).sum().backward()
    assert x.grad is not None
    return x.grad


def ensemble() -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [nn.Linear(4, 3) for _ in range(3)]
    parameters, _ = stack_module_state(layers)
    return vmap(lambda p, x: functional_call(layers[0], p, (x,)), (0, None))(parameters, BATCH)


def draw() -> torch.Tensor:
    torch.manual_seed(5)
    return vmap(lambda x: nn.functional.dropout(x, 0.5), randomness="different")(BATCH)


def jacobian_at_once() -> torch.Tensor:
    found: torch.Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        lambda x: torch.tanh(x @ WEIGHT), BATCH[0], vectorize=True
    )
    return found


RUNS: dict[str, Callable[[], torch.Tensor]] = {
    "vmap in place": lambda: vmap(write_in_place)(BATCH),
    "grad in place": lambda: grad(lambda x: (write_in_place(x) ** 2).sum())(BATCH[0]),
    "a view from outside": lambda: grad(lambda x: (x @ WEIGHT).sum())(BATCH[0]),
    "other dims": lambda: vmap(torch.matmul, in_dims=(1, None), out_dims=1)(BATCH, WEIGHT),
    "nested": lambda: vmap(vmap(torch.sin, in_dims=1), in_dims=2)(BATCH),
    "per-sample gradients": lambda: vmap(grad(lambda x: Square.apply(x).sum()))(BATCH),
    "hessian": lambda: hessian(lambda x: (torch.tanh(x @ WEIGHT) ** 2).sum())(BATCH[0]),
    "jvp": lambda: jvp(write_in_place, (BATCH[0],), (BATCH[1],))[1],
    "functionalize": lambda: torch.func.functionalize(write_in_place)(BATCH[0]),
    "backward through vmap": backward_through_vmap,
    "gradients as a batch": jacobian_at_once,
    "ensemble": ensemble,
    "random": draw,
}


def capture(path: Path, run: Callable[[], Any], **options: Any) -> dict[str, CallRecord]:
    config = load_config(dump_path=path, **options)
    debugger = PrecisionDebugger.from_config(config)
    debugger.start()
    run()
    debugger.stop()
    debugger.step()
    assert not list(path.rglob("dump_error_info.log"))
    return {record.name: record for record in open_dump(path)}


def tensor(value: Value) -> TensorValue:
    assert isinstance(value, TensorValue)
    return value


def outputs(record: CallRecord) -> list[TensorValue]:
    return [tensor(value) for value in record.outputs or () if value is not None]


def all_tensors(record: CallRecord) -> Iterator[TensorValue]:
    for value in (*(record.inputs or ()), *(record.outputs or ())):
        if isinstance(value, TensorValue):
            yield value


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("level", "task", "summary_mode"),
    [
        ("L1", "statistics", "md5"),
        ("mix", "tensor", "statistics"),
        ("L0", "statistics", "statistics"),
        ("L2", "statistics", "statistics"),
        ("mix", "overflow_check", "statistics"),
    ],
)
def test_a_capture_changes_nothing_inside_a_transform(
    tmp_path: Path, name: str, level: str, task: str, summary_mode: str
) -> None:
    if (level, name) == ("L2", "jvp") and not has_tangents_under_dispatch_modes():
        pytest.skip("torch's own jvp fails under any dispatch mode")
    run = RUNS[name]
    expected, state = run(), torch.get_rng_state()
    debugger = PrecisionDebugger.from_config(
        load_config(dump_path=tmp_path, level=level, task=task, summary_mode=summary_mode)
    )
    debugger.start()
    found = run()
    debugger.stop()
    debugger.step()
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert not is_transforming()


def test_calls_inside_vmap_have_the_numbers_of_the_whole_batch(tmp_path: Path) -> None:
    calls = capture(tmp_path, RUNS["vmap in place"])
    tripled = BATCH * 3
    (after,) = outputs(calls["Tensor.mul_.0.forward"])
    assert (after.shape, after.max, after.min) == (
        (5, 2, 4),
        tripled.max().item(),
        tripled.min().item(),
    )
    assert after.form == "torch.func: BatchedTensor [2, 4] (batch in dim 0)"
    tripled[:, 0] = 7
    (given, *_) = calls["Tensor.sum.0.forward"].inputs or ()
    assert tensor(given).max == 7.0
    (total,) = outputs(calls["Tensor.sum.0.forward"])
    assert (total.shape, total.max) == ((5, 4), tripled.sum(1).max().item())


def test_each_batch_dimension_is_told(tmp_path: Path) -> None:
    calls = capture(tmp_path, RUNS["nested"])
    ((given,), (result,)) = (
        calls["Torch.sin.0.forward"].inputs or (),
        outputs(calls["Torch.sin.0.forward"]),
    )
    assert tensor(given).form == (
        "torch.func: BatchedTensor [5] (batch in dim 1) "
        "around BatchedTensor [5, 2] (batch in dim 2)"
    )
    assert (tensor(given).shape, result.max) == ((5, 2, 4), BATCH.sin().max().item())


def test_data_of_calls_inside_transforms_are_kept(tmp_path: Path) -> None:
    calls = capture(tmp_path, RUNS["a view from outside"], task="tensor")
    part = open_dump(tmp_path).part(step=0)
    record = calls["Tensor.__matmul__.0.forward"]
    given, weight = (tensor(value) for value in record.inputs or ())
    assert torch.equal(load_tensor(part, given), BATCH[0])
    assert torch.equal(load_tensor(part, weight), WEIGHT)
    assert torch.equal(load_tensor(part, outputs(record)[0]), BATCH[0] @ WEIGHT)
    assert given.form == "torch.func: GradTrackingTensor"
    (gradient,) = outputs(calls["Tensor.__matmul__.0.backward"])
    assert torch.equal(load_tensor(part, gradient), RUNS["a view from outside"]())


def test_a_backward_pass_through_vmap_is_recorded(tmp_path: Path) -> None:
    calls = capture(tmp_path, backward_through_vmap, task="tensor")
    part = open_dump(tmp_path).part(step=0)
    (gradient,) = outputs(calls["Tensor.__matmul__.0.backward"])
    assert torch.equal(load_tensor(part, gradient), backward_through_vmap())
    (given, _) = calls["Tensor.__matmul__.0.forward"].inputs or ()
    assert tensor(given).requires_grad


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@BOTH_WAYS
def test_gradients_that_come_as_a_batch_are_recorded(
    tmp_path: Path, task: str, listed: tuple[str, ...]
) -> None:
    calls = capture(tmp_path, jacobian_at_once, task=task, list=list(listed))
    ((given,), (result,)) = (
        calls["Torch.tanh.0.backward"].inputs or (),
        outputs(calls["Tensor.__matmul__.0.backward"]),
    )
    assert tensor(given).form == "torch.func: BatchedTensor [2, 3] (batch in dim 0)"
    # Each element of the result gets a one in turn.
    assert (tensor(given).shape, tensor(given).mean) == ((6, 2, 3), pytest.approx(1 / 6))
    found = jacobian_at_once().reshape(6, 2, 4)
    assert (result.shape, result.max, result.min) == (
        (6, 2, 4),
        found.max().item(),
        found.min().item(),
    )
    if task == "tensor":
        assert torch.equal(load_tensor(open_dump(tmp_path).part(step=0), result), found)


def test_no_call_inside_a_transform_is_without_numbers(tmp_path: Path) -> None:
    for number, name in enumerate(("per-sample gradients", "jvp", "ensemble", "random")):
        calls = capture(tmp_path / str(number), RUNS[name])
        found = [value for record in calls.values() for value in all_tensors(record)]
        assert any(value.form for value in found)
        assert all(value.max is not None for value in found), name


def test_functionalized_tensors_are_described_alone(tmp_path: Path) -> None:
    # What they show may have writes to catch up with, which would change their state.
    calls = capture(tmp_path, RUNS["functionalize"])
    (result,) = outputs(calls["Tensor.__mul__.0.forward"])
    assert (result.form, result.max) == ("torch.func: FunctionalTensor", None)


def test_a_call_on_a_batch_is_not_run_again_as_if_it_were_none(tmp_path: Path) -> None:
    calls = capture(tmp_path, RUNS["vmap in place"], task="tensor")
    part = open_dump(tmp_path).part(step=0)
    with pytest.raises(RebuildError, match=r"input.0 was a batch of torch.func.vmap, torch.func"):
        rebuild_call(calls["Tensor.sum.0.forward"], lambda value: load_tensor(part, value))


def test_stepping_out_of_a_transform_holds_for_the_block_alone() -> None:
    seen: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(is_transforming())
        with without_transforms():
            seen.append(is_transforming())
        seen.append(is_transforming())
        return x * 2

    assert torch.equal(vmap(look)(BATCH), BATCH * 2)
    assert seen == [True, False, True]
    with without_transforms():
        assert not is_transforming()
