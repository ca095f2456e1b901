"""Kernels whose numbers are right and that are wrong all the same: dtype, memory, inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe import OnlineCheck


class OtherKernel(TorchDispatchMode):
    """Makes one operator by other means.

    Args:
        operator: its name without the overload.
        make: given the operator and its arguments, returns the result.
    """

    def __init__(self, operator: str, make: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.operator, self.make = operator, make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] != self.operator:
            return func(*args, **(kwargs or {}))
        return self.make(lambda *given: func(*given, **(kwargs or {})), args)


def spoil_before(func: Any, args: Any) -> Any:
    args[0].mul_(2)
    return func(*args)


def spoil_after(func: Any, args: Any) -> Any:
    result = func(*args)
    args[0].mul_(2)
    return result


def into_the_input(func: Any, args: Any) -> Any:
    return args[0].copy_(func(*args))


def on_a_copy(func: Any, args: Any) -> Any:
    return func(args[0].clone(), *args[1:])


def as_dtype(dtype: torch.dtype) -> Callable[[Any, Any], Any]:
    return lambda func, args: func(*args).to(dtype)


X = torch.linspace(-1, 1, 64)


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    ("operator", "make", "run", "reason"),
    [
        ("mm", as_dtype(torch.bfloat16), lambda x: x.view(8, 8) @ x.view(8, 8), "wanted torch.flo"),
        (
            "gelu",
            as_dtype(torch.float64),
            torch.nn.functional.gelu,
            "the device gave torch.float64",
        ),
        ("gelu", as_dtype(torch.float16), torch.nn.functional.gelu, "wanted torch.float32"),
        ("gelu", as_dtype(torch.complex64), torch.nn.functional.gelu, "wanted torch.float32"),
        ("_to_copy", as_dtype(torch.bfloat16), lambda x: x.half(), "wanted torch.float16"),
        ("zeros", as_dtype(torch.float64), lambda x: torch.zeros(3), "wanted torch.float32"),
        ("relu", spoil_before, torch.relu, "of 64"),
        ("relu", spoil_after, torch.relu, "wrote into it, the reference does not"),
        ("gelu", into_the_input, torch.nn.functional.gelu, "wrote into it"),
        ("mul_", on_a_copy, lambda x: x.mul_(3), "it should be memory of an input"),
        ("view", on_a_copy, lambda x: x.view(8, 8), "it should be memory of an input"),
        ("t", on_a_copy, lambda x: x.view(8, 8).t(), "it should be memory of an input"),
        ("detach", on_a_copy, lambda x: x.detach(), "it should be memory of an input"),
        ("clone", lambda func, args: args[0], lambda x: x.clone(), "should not be memory"),
    ],
)
def test_a_kernel_that_is_right_in_every_number_may_be_wrong(
    tmp_path: Path,
    operator: str,
    make: Callable[[Any, Any], Any],
    run: Callable[[torch.Tensor], Any],
    reason: str,
    jobs: int,
) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True, jobs=jobs)
    x = X.clone()
    with OtherKernel(operator, make), check:
        run(x)
    (failure,) = check.report.failures
    assert failure.name == f"{operator}_1"
    if make is not spoil_before:
        assert reason in failure.numbers


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.to(torch.float64),
        lambda x: x.to(torch.float32),
        lambda x: x.contiguous(),
        lambda x: x.reshape(8, 8),
        lambda x: x.view(8, 8).t().reshape(-1),
        lambda x: x.expand(3, 64).reshape(-1),
        lambda x: x.view(8, 8).t().mul_(2),
        lambda x: x[:0].relu(),
        lambda x: torch.add(x[:8], x[8:16], out=x[16:24]),
        lambda x: x.masked_fill_(x > 0, float("nan")).relu(),
        lambda x: torch.complex(x, x).conj() * 2,
        lambda x: (x.bool() | True, x.int() + 1.5, x.int() // 2),
        lambda x: torch.nn.functional.layer_norm(x.bfloat16(), (64,)),
        lambda x: torch.nn.functional.batch_norm(
            x.view(2, 8, 4)[:, ::2], torch.zeros(4), torch.ones(4), training=True
        ),
        lambda x: (
            torch.bucketize(x, X, right=True),
            torch.bucketize(x, X, out_int32=True),
        ),
        lambda x: (x[0], x.view(8, 8).unbind()[1][2], x.sum().expand(3)),
    ],
)
@pytest.mark.parametrize("is_inference", [False, True])
def test_what_is_right_fails_in_no_form(
    tmp_path: Path, run: Callable[[torch.Tensor], Any], is_inference: bool, jobs: int
) -> None:
    x = X.clone()
    with (
        OnlineCheck(path=tmp_path, quiet=True, jobs=jobs) as check,
        torch.inference_mode(is_inference),
    ):
        run(x + 1)
    assert check.report.failures == ()
    assert check.report.checked


def other_row(func: Any, args: Any) -> Any:
    return func(args[0], args[1], args[2] + 1)


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize("shape", [(4, 4), (4,)])
def test_a_view_of_another_place_that_holds_the_same_fails(
    tmp_path: Path, shape: tuple[int, ...], jobs: int
) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True, jobs=jobs)
    with OtherKernel("select", other_row), check:
        torch.zeros(shape)[1].fill_(5)
    (failure,) = check.report.failures
    assert failure.name == "select_1"
    assert "a view of other elements of its base" in failure.numbers


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_users_operator_may_write_into_a_part_of_an_argument_and_return_it(
    tmp_path: Path, jobs: int
) -> None:
    library = torch.library.Library("online_forms", "DEF")
    library.define("update(Tensor(a!) row, Tensor table) -> ()")
    library.define("as_float(Tensor x) -> Tensor")

    def update(row: torch.Tensor, table: torch.Tensor) -> None:
        row.copy_(table.mean(0))

    library.impl("update", update, "CPU")
    library.impl("as_float", lambda x: x.float(), "CPU")
    x = torch.rand(3, 4, 2)[..., 0]
    with OnlineCheck(path=tmp_path, quiet=True, jobs=jobs) as check:
        torch.ops.online_forms.update(x[1], x)
        torch.ops.online_forms.as_float(x)
        torch.ops.online_forms.as_float(x.half())
    assert check.report.failures == ()
    library._destroy()


def test_a_default_dtype_that_changes_meanwhile_accuses_nobody(tmp_path: Path) -> None:
    large = torch.rand(300, 300)
    try:
        with OnlineCheck(path=tmp_path, quiet=True, jobs=1) as check:
            torch.linalg.svd(large)
            torch.set_default_dtype(torch.bfloat16)
            1.0 / (10000 ** (torch.arange(0, 64, 2) / 64))
            torch.set_default_dtype(torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert check.report.failures == ()
