"""L2 on small real models: which operators ran, for which call, and with which values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import tensorprobe
from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import ScalarValue, TensorValue, Value
from tensorprobe.store.dump import RankDump
from torch_abilities import tells_of_indexing
from warm_python import run_warm

# Where they are, types of torch's own are missing.
backward: Any = torch.autograd.backward


def capture(
    folder: Path, use: Callable[[], Any], *, task: str = "tensor", **filters: Any
) -> RankDump:
    """Run something at level L2 and open what was recorded."""
    file = folder / "config.json"
    fields = {"level": "L2", "dump_path": str(folder / "dump"), "task": task, task: filters}
    file.write_text(json.dumps(fields))
    debugger = PrecisionDebugger(file)
    debugger.start()
    use()
    debugger.stop()
    debugger.step()
    # Beside it may stand a debug.json.
    (dump,) = open_dump(folder / "dump" / "step0" / "rank" / "dump.json").parts
    assert not dump.gaps
    return dump


def make_mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def make_cnn() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.BatchNorm2d(2),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(18, 3),
    )


def step(net: torch.nn.Module, x: torch.Tensor) -> None:
    backward(net(x).square().sum())


def operators(dump: RankDump, direction: str) -> set[str]:
    """The operators of one direction, without their numbers."""
    return {
        name.rsplit(".", 2)[0].removeprefix("Aten.")
        for name in dump.names
        if name.startswith("Aten.") and name.endswith(f".{direction}")
    }


def data_of(dump: RankDump, value: Value) -> Any:
    assert isinstance(value, TensorValue)
    return dump.load(value).array


def test_the_operators_of_both_directions_are_there(tmp_path: Path) -> None:
    x = torch.randn(2, 1, 8, 8)
    dump = capture(tmp_path, lambda: step(make_cnn(), x))
    assert dump.info.level == "L2"
    forward = {"convolution", "native_batch_norm", "relu_", "max_pool2d_with_indices", "addmm"}
    back = {"convolution_backward", "native_batch_norm_backward", "threshold_backward", "mm"}
    assert forward <= operators(dump, "forward")
    assert back <= operators(dump, "backward")
    assert not back & operators(dump, "forward") and not forward & operators(dump, "backward")


def test_a_profiler_computes_nothing(tmp_path: Path) -> None:
    def use() -> None:
        with torch.profiler.record_function("named"):
            torch.ones(3)

    assert list(capture(tmp_path, use).names) == ["Aten.ones.0.forward"]


def test_an_overload_is_part_of_the_name_and_each_direction_counts_its_own(tmp_path: Path) -> None:
    def use() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x * 2 * x
        backward(y.sum())

    dump = capture(tmp_path, use)
    found = [name for name in dump.names if name.startswith("Aten.mul")]
    numbers = {"forward": 2, "backward": 3}
    assert found == [
        f"Aten.mul.Tensor.{number}.{direction}"
        for direction, count in numbers.items()
        for number in range(count)
    ]


def test_inputs_are_read_before_and_outputs_after(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bias, x, weight = torch.randn(3), torch.randn(2, 4), torch.randn(4, 3)

    def use() -> None:
        y = torch.addmm(bias, x, weight)
        y.relu_()
        y.add_(1.0, alpha=2)

    dump = capture(tmp_path, use)
    product = dump.call("Aten.addmm.0.forward")
    assert product.inputs is not None and product.outputs is not None
    expected = bias.numpy() + x.numpy() @ weight.numpy()
    np.testing.assert_array_equal(data_of(dump, product.inputs[1]), x.numpy())
    np.testing.assert_allclose(data_of(dump, product.outputs[0]), expected, rtol=1e-6)
    relu = dump.call("Aten.relu_.0.forward")
    assert relu.inputs is not None and relu.outputs is not None
    np.testing.assert_allclose(data_of(dump, relu.inputs[0]), expected, rtol=1e-6)
    np.testing.assert_allclose(data_of(dump, relu.outputs[0]), expected.clip(0), rtol=1e-6)
    add = dump.call("Aten.add_.Tensor.0.forward")
    assert add.outputs is not None
    assert add.kwargs == {"alpha": ScalarValue("int", 2)}
    np.testing.assert_allclose(data_of(dump, add.outputs[0]), expected.clip(0) + 2, rtol=1e-6)


def test_running_statistics_are_read_anew_although_nothing_says_that_they_changed(
    tmp_path: Path,
) -> None:
    norm = torch.nn.BatchNorm1d(2)
    x = torch.tensor([[0.0, 2.0], [4.0, 6.0]])

    def use() -> None:
        norm(x)
        norm(x)

    dump = capture(tmp_path, use)
    means: list[list[float]] = []
    for number in range(2):
        call = dump.call(f"Aten.native_batch_norm.{number}.forward")
        assert call.inputs is not None
        means.append(data_of(dump, call.inputs[3]).tolist())
    np.testing.assert_allclose(means, [[0.0, 0.0], [0.2, 0.4]], rtol=1e-6)


def test_an_operator_stands_below_its_api_call(tmp_path: Path) -> None:
    dump = capture(tmp_path, lambda: step(make_mlp(), torch.randn(2, 4)))
    parents = {name: dump.parent(name) for name in dump.names}
    assert parents["Aten.addmm.0.forward"] == "Functional.linear.0.forward"
    assert parents["Aten.addmm.1.forward"] == "Functional.linear.1.forward"
    assert parents["Aten.mm.0.backward"] == "Functional.linear.1.backward"
    assert parents["Aten.threshold_backward.0.backward"] == "Functional.relu.0.backward"
    assert not any(name.startswith("Functional") for name in dump.names)


@pytest.mark.skipif(not tells_of_indexing(), reason="this torch does not tell of items")
def test_operators_behind_an_item_that_was_set_stand_below_that_call(tmp_path: Path) -> None:
    x, v = torch.ones(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)

    def use() -> None:
        hidden = x * 1.0
        hidden[1] = v
        backward((hidden * hidden).sum())

    dump = capture(tmp_path, use, list=["__setitem__"])
    parents = {dump.parent(name) for name in dump.names}
    assert parents == {"Tensor.__setitem__.0.forward", "Tensor.__setitem__.0.backward"}


def test_a_list_keeps_only_the_operators_of_its_calls(tmp_path: Path) -> None:
    dump = capture(
        tmp_path, lambda: step(make_mlp(), torch.randn(2, 4)), list=["Functional.linear.1"]
    )
    parents = {dump.parent(name) for name in dump.names}
    assert parents == {"Functional.linear.1.forward", "Functional.linear.1.backward"}
    assert "addmm" in operators(dump, "forward") and "mm" in operators(dump, "backward")


@pytest.mark.parametrize(
    ("listed", "directions"),
    [("linear.0.forward", {"forward"}), ("linear.0.backward", {"backward"})],
)
def test_a_list_may_name_one_direction(tmp_path: Path, listed: str, directions: set[str]) -> None:
    dump = capture(tmp_path, lambda: step(make_mlp(), torch.randn(2, 4)), list=[listed])
    assert {name.rpartition(".")[2] for name in dump.names} == directions


def test_data_mode_holds_for_operators_too(tmp_path: Path) -> None:
    dump = capture(
        tmp_path, lambda: step(make_mlp(), torch.randn(2, 4)), data_mode=["backward", "output"]
    )
    assert dump.names and all(name.endswith(".backward") for name in dump.names)
    assert all(call.inputs is None and call.outputs is not None for call in dump.calls())


def test_an_operator_is_named_by_the_users_line(tmp_path: Path) -> None:
    def use() -> None:
        torch.ones(2).cumsum(0)

    dump = capture(tmp_path, use)
    top = dump.stack("Aten.cumsum.0.forward")[0]
    assert (top.path, top.source) == (__file__, "torch.ones(2).cumsum(0)")


def test_what_the_tool_does_itself_is_not_recorded(tmp_path: Path) -> None:
    def use() -> None:
        y = torch.ones(2, 2).exp()
        tensorprobe.save(y, "y")
        y.sin()

    dump = capture(tmp_path, use)
    assert dump.names and operators(dump, "forward") == {"ones", "exp", "sin"}


@pytest.mark.skipif(not hasattr(torch.library, "custom_op"), reason="this torch has no custom_op")
def test_custom_and_higher_order_operators_run_and_are_recorded(tmp_path: Path) -> None:
    twice = torch.library.custom_op(
        "tensorprobe_test::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    cond: Any = torch.ops.higher_order.cond

    def use() -> None:
        twice(torch.ones(2))
        cond(torch.tensor(True), lambda x: (x.sin(),), lambda x: (x.cos(),), (torch.ones(2),))

    dump = capture(tmp_path, use)
    assert "Custom.tensorprobe_test.twice.0.forward" in dump
    assert "Custom.higher_order.cond.0.forward" in dump


def test_a_recomputed_operator_is_one_of_the_backward_pass(tmp_path: Path) -> None:
    net = make_mlp()

    def use() -> None:
        y: Any = checkpoint(net, torch.ones(2, 4, requires_grad=True), use_reentrant=False)
        y.sum().backward()

    dump = capture(tmp_path, use)
    assert [name for name in dump.names if name.startswith("Aten.addmm")] == [
        "Aten.addmm.0.forward",
        "Aten.addmm.1.forward",
        # The second one is not needed again.
        "Aten.addmm.0.backward",
    ]


@pytest.mark.parametrize("make", [make_mlp, make_cnn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_the_same_to_the_bit(
    tmp_path: Path, make: Callable[[], torch.nn.Module], dtype: torch.dtype
) -> None:
    def train(debugger: PrecisionDebugger | None) -> list[torch.Tensor]:
        net = make().to(dtype)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        shape = (2, 4) if make is make_mlp else (2, 1, 8, 8)
        for _ in range(3):
            if debugger is not None:
                debugger.start(net)
            optimizer.zero_grad()
            step(net, torch.randn(shape, dtype=dtype))
            optimizer.step()
            if debugger is not None:
                debugger.step()
        return [*net.state_dict().values(), torch.get_rng_state()]

    plain = train(None)
    watched = train(PrecisionDebugger(dump_path=tmp_path, level="L2"))
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert len(open_dump(tmp_path).parts) == 3


def test_nothing_stays_behind(tmp_path: Path) -> None:
    net, x, left = make_mlp(), torch.randn(2, 4), []
    capture(tmp_path, lambda: (left.append(net(x)), step(net, x)))
    node = left[0].grad_fn
    assert not node.metadata and not node.next_functions[0][0].metadata
    assert _get_current_dispatch_mode() is None
    assert not torch._C._len_torch_function_stack()


def test_the_compiler_is_not_imported(tmp_path: Path) -> None:
    # It takes seconds; what a signal's handler raises then would leave it half imported.
    script = (
        "import sys, torch\n"
        "from tensorprobe import PrecisionDebugger\n"
        "with PrecisionDebugger(dump_path=sys.argv[1], level='L2'):\n"
        "    torch.ones(2, requires_grad=True).exp().sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    run_warm(script, tmp_path, check=True)
    assert "Aten.exp.0.forward" in open_dump(tmp_path).parts[0].names
