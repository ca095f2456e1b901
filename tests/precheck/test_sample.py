"""Of a large doubtful result a part of its rows is run again, if they stand for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from precheck_models import capture_into, unseen
from torch.nn import functional

from tensorprobe.precheck.checker import Checker
from tensorprobe.replay import functions

_CPU = torch.device("cpu")
_RIGHT = functional.softmax


def checker_of(folder: Path, *, dimension: int) -> Checker:
    """Return a checker of a softmax whose gradient cancels: what arrives is nearly the same."""

    def run() -> None:
        with unseen():
            generator = torch.Generator().manual_seed(1)
            given = torch.randn(64, 16, 512, generator=generator).to(torch.bfloat16)
            sent = 1 + 0.002 * torch.randn(64, 16, 512, generator=generator)
            given.requires_grad_()
        result = functional.softmax(given, dim=dimension)
        with unseen():
            result.backward(sent.to(torch.bfloat16))

    return Checker(capture_into(folder)(run), _CPU)


def test_some_rows_explain_a_gradient_that_cancels(tmp_path: Path) -> None:
    result = checker_of(tmp_path, dimension=-1).check("Functional.softmax.0.forward")
    assert (result.forward, result.backward) == ("pass", "warning")
    assert "of 64 rows, the furthest among them" in result.message


def test_rows_that_depend_on_each_other_are_run_as_a_whole(tmp_path: Path) -> None:
    result = checker_of(tmp_path, dimension=0).check("Functional.softmax.0.forward")
    assert (result.forward, result.backward) == ("pass", "warning")
    # Neither 64 nor 16 rows stand for themselves and are many enough.
    assert "of 64 rows" not in result.message


@pytest.mark.parametrize("row", [3, 40])
def test_one_wrong_row_is_among_those_that_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    """All rows are doubtful, and one is twice as large as it should be."""

    def double(gradient: torch.Tensor) -> torch.Tensor:
        wrong = gradient.clone()
        if gradient.dtype is torch.bfloat16:
            wrong[row] *= 2
        return wrong

    def softmax(given: torch.Tensor, dim: int) -> torch.Tensor:
        copy = given.clone()
        copy.register_hook(double)
        return _RIGHT(copy, dim)

    checker = checker_of(tmp_path, dimension=-1)
    functions.find_function.cache_clear()
    monkeypatch.setattr(functional, "softmax", softmax)
    result = checker.check("Functional.softmax.0.forward")
    functions.find_function.cache_clear()
    assert (result.forward, result.backward) == ("pass", "error")
