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
