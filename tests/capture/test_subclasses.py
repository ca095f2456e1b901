"""Tensors that are none of the usual are described, never crashed on, and do not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import CallRecord, DictValue, TensorValue, UnknownValue
from tensorprobe.store import open_dump

LEVELS = ["L0", "L1", "L2", "mix"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning",
    "ignore:Sparse CSR tensor support:UserWarning",
    "ignore:Lazy modules are a new feature:UserWarning",
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning",
)


class Passing(nn.Module):
    """Hands its input through one operation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def capture(
    folder: Path, x: Tensor, level: str = "mix", *, task: str = "statistics"
) -> tuple[dict[str, CallRecord], Tensor]:
    model = Passing()
    debugger = PrecisionDebugger(dump_path=folder, level=level, task=task)
    debugger.start(model)
    out = model(x)
    debugger.stop()
    debugger.step()
    debugger.close()
    assert not list(folder.rglob("dump_error_info.log"))
    return {record.name: record for record in open_dump(folder)}, out


def given(records: dict[str, CallRecord]) -> Any:
    return (records["Module.Passing.forward.0"].inputs or ())[0]


def returned(records: dict[str, CallRecord]) -> Any:
    return (records["Module.Passing.forward.0"].outputs or ())[0]


# --- classes of the user's own -------------------------------------------------------------------


class Counted(Tensor):
    """A class that sees every call of torch with one of its tensors."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(Tensor):
    """A class without memory of its own, that sees every operator."""

    seen: ClassVar[list[str]] = []
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        args, kwargs = pytree.tree_map_only(Wrapped, lambda w: w.inner, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, cls, func(*args, **kwargs))


class Flat(Wrapped):
    """The same, and it says what it consists of."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


class Scaled(Wrapped):
    """It consists of two tensors."""

    @property
    def scale(self) -> Tensor:
        return torch.full((), 3.0)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner", "scale"], None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [Counted, Wrapped, Flat, Scaled])
def test_a_class_of_the_user_runs_the_same_calls_with_and_without_us(
    kind: Any, level: str, tmp_path: Path
) -> None:
    if level == "L2" and torch.__version__.startswith("2.1."):
        pytest.skip("in torch 2.1 any dispatch mode, also an empty one, disturbs such classes")

    def train() -> tuple[Tensor, list[str]]:
        plain = torch.arange(6.0).reshape(2, 3)
        x = plain.as_subclass(Counted) if kind is Counted else kind(plain)
        x.requires_grad_()
        kind.seen.clear()
        out = (Passing()(x) + 1).exp()
        (x.grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
        return x.grad, list(kind.seen)

    alone, calls_alone = train()
    debugger = PrecisionDebugger(dump_path=tmp_path, level=level)
    debugger.start()
    gradient, calls = train()
    debugger.stop()
    debugger.step()
    assert calls == calls_alone
    assert type(gradient) is type(alone)
    a, b = (g.inner if isinstance(g, Wrapped) else g.as_subclass(Tensor) for g in (alone, gradient))
    assert torch.equal(a, b)
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert list(open_dump(tmp_path))


def test_a_class_with_memory_has_its_numbers_and_data(tmp_path: Path) -> None:
    plain = torch.tensor([3.0, 4.0])
    records, out = capture(tmp_path, plain.as_subclass(Counted), task="tensor")
    assert type(out) is Counted
    value = given(records)
    assert (value.form, value.shape, value.max, value.norm) == ("Counted", (2,), 4.0, 5.0)
    dump = open_dump(tmp_path).part(step=0)
    assert dump.load(value).array.tolist() == [3.0, 4.0]
    assert returned(records).norm == 10.0


def test_a_class_without_memory_is_described(tmp_path: Path) -> None:
    records, _ = capture(tmp_path, Wrapped(torch.tensor([3.0, 4.0])))
    assert given(records) == TensorValue("torch.float32", (2,), requires_grad=False, form="Wrapped")


def test_a_class_that_tells_its_parts_has_their_numbers(tmp_path: Path) -> None:
    records, _ = capture(tmp_path / "one", Flat(torch.tensor([3.0, 4.0])))
    assert (given(records).form, given(records).norm) == ("Flat", 5.0)
    records, _ = capture(tmp_path / "two", Scaled(torch.tensor([3.0, 4.0])))
    value = given(records)
    assert isinstance(value, DictValue)
    parts: Any = dict(value.items)
    assert {key: (part.norm, part.form) for key, part in parts.items()} == {
        "inner": (5.0, "Scaled"),
        "scale": (3.0, "Scaled"),
    }


# --- torch's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
# torch 2.1 has no jagged tensors.
@pytest.mark.parametrize("layout", [torch.strided, *filter(None, [getattr(torch, "jagged", None)])])
def test_a_nested_tensor_has_the_numbers_of_its_values(
    layout: torch.layout, level: str, tmp_path: Path
) -> None:
    parts = [torch.full((2, 3), 1.0), torch.full((4, 3), -2.0)]
    # torch 2.1 has but one layout, and no name for it.
    x = torch.nested.nested_tensor(parts, **({} if layout is torch.strided else {"layout": layout}))
    records, out = capture(tmp_path, x, level)
    assert torch.equal(out.unbind()[1], parts[1] * 2)
    if level in ("L0", "mix"):
        value = given(records)
        assert value.form == "nested [2, *, 3]"
        assert (value.max, value.min, value.mean) == (1.0, -2.0, -1.0)
        assert returned(records).min == -4.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_tensor_has_the_numbers_of_its_values(
    layout: torch.layout, level: str, tmp_path: Path
) -> None:
    x = torch.diag(torch.tensor([1.0, 2.0, 3.0])).to_sparse(layout=layout)
    records, out = capture(tmp_path, x, level)
    assert torch.equal(out.to_dense(), x.to_dense() * 2)
    if level in ("L0", "mix"):
        name = str(layout).removeprefix("torch.")
        value = given(records)
        assert (value.form, value.shape, value.mean) == (f"{name} [3, 3]", (3,), 2.0)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_quantized_tensor_has_the_numbers_that_it_stands_for(level: str, tmp_path: Path) -> None:
    x = torch.quantize_per_tensor(torch.tensor([-0.5, 1.0, 3.0]), 0.5, 2, torch.qint8)
    with PrecisionDebugger(dump_path=tmp_path, level=level, task="tensor"):
        out = torch.relu(x)
    assert out.dequantize().tolist() == [0.0, 1.0, 3.0]
    part = open_dump(tmp_path).part(step=0)
    record = part.call("Torch.relu.0.forward")
    before, after = (*(record.inputs or ()), *(record.outputs or ()))
    for value, minimum in ((before, -0.5), (after, 0.0)):
        assert isinstance(value, TensorValue)
        assert (value.form, value.shape, value.max) == ("quantized qint8", (3,), 3.0)
        assert value.min == minimum
        assert value.data_name is not None
        file = part.path.parent / "dump_tensor_data" / value.data_name
        data = torch.load(file, weights_only=True)
        assert data.tolist() == [minimum, 1.0, 3.0]


def test_a_tensor_of_a_type_of_few_bits_has_the_numbers_of_its_bytes(tmp_path: Path) -> None:
    x = torch.arange(8, dtype=torch.uint8)
    with PrecisionDebugger(dump_path=tmp_path, level="L1"):
        x.view(torch.bits4x2)
    record = open_dump(tmp_path).part(step=0).call("Tensor.view.0.forward")
    (value,) = record.outputs or ()
    assert isinstance(value, TensorValue)
    assert (value.form, value.max, value.mean) == ("bytes of bits4x2", 7, 3.5)


@pytest.mark.parametrize("level", LEVELS)
def test_a_meta_tensor_has_a_shape_and_no_numbers(level: str, tmp_path: Path) -> None:
    records, _ = capture(tmp_path, torch.empty(2, 3, device="meta"), level)
    if level in ("L0", "mix"):
        assert given(records) == TensorValue(
            "torch.float32", (2, 3), requires_grad=False, form="meta"
        )


@pytest.mark.parametrize("level", LEVELS)
def test_a_fake_tensor_has_a_shape_and_no_numbers(level: str, tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 3)
        records, _ = capture(tmp_path, x, level)
    if level in ("L0", "mix"):
        assert (given(records).form, given(records).shape) == ("FakeTensor", (2, 3))


def test_a_tensor_whose_memory_was_given_back_is_described(tmp_path: Path) -> None:
    layer = nn.Linear(1200, 1200)
    weight = layer.weight
    layer.forward = lambda x: x * 2  # type: ignore[method-assign]
    weight.untyped_storage().resize_(0)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.start(layer)
    layer(torch.ones(2))
    debugger.stop()
    debugger.step()
    record = open_dump(tmp_path).part(step=0).call("Module.Linear.forward.0")
    value: Any = (record.parameters or {})["weight"]
    assert (value.form, value.shape, value.max) == ("without memory", (1200, 1200), None)


def test_a_parameter_without_a_shape_is_described(tmp_path: Path) -> None:
    layer = nn.LazyLinear(3)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start(layer)
    layer(torch.ones(2, 4))
    debugger.stop()
    debugger.step()
    records = {record.name: record for record in open_dump(tmp_path)}
    (record,) = (r for name, r in records.items() if "forward" in name)
    weight = (record.parameters or {})["weight"]
    assert isinstance(weight, UnknownValue)
