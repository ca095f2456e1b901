"""Functions that choose: other places of equal values are right, places of other values are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import OtherChoice

from tensorprobe import OnlineCheck

X = torch.tensor([[4.0, 7.0, 7.0, 1.0, 7.0]], dtype=torch.bfloat16)


def failures(
    path: Path, operator: str, choose: Callable[[Any], Any], run: Callable[[], Any]
) -> Any:
    with OtherChoice(operator, choose), OnlineCheck(path=path, quiet=True) as check:
        run()
    return [failure.name for failure in check.report.failures]


def with_places(places: list[list[int]]) -> Callable[[Any], Any]:
    return lambda result: (result[0], torch.tensor(places))


@pytest.mark.parametrize("places", [[[1, 2]], [[2, 1]], [[4, 2]]])
def test_any_of_equal_values_may_be_chosen(tmp_path: Path, places: list[list[int]]) -> None:
    assert failures(tmp_path, "topk", with_places(places), lambda: X.topk(2)) == []


@pytest.mark.parametrize("places", [[[1, 0]], [[2, 2]], [[1, 9]]])
def test_another_value_or_one_twice_is_a_failure(tmp_path: Path, places: list[list[int]]) -> None:
    assert failures(tmp_path, "topk", with_places(places), lambda: X.topk(2)) == ["topk_1"]


def test_values_in_another_order_are_right_where_none_was_asked_for(tmp_path: Path) -> None:
    def reverse(result: Any) -> Any:
        return tuple(tensor.flip(-1) for tensor in result)

    run = lambda sorted: lambda: X.topk(4, sorted=sorted)  # noqa: E731
    assert failures(tmp_path, "topk", reverse, run(False)) == []
    assert failures(tmp_path, "topk", reverse, run(True)) == ["topk_1"]


def test_values_that_are_wrong_fail_in_any_order(tmp_path: Path) -> None:
    def spoil(result: Any) -> Any:
        return result[0] * 1.03, result[1]

    assert failures(tmp_path, "topk", spoil, lambda: X.topk(4, sorted=False)) == ["topk_1"]


def test_a_stable_sort_has_one_right_order(tmp_path: Path) -> None:
    choose = with_places([[3, 0, 2, 1, 4]])
    assert failures(tmp_path, "sort", choose, lambda: X.sort()) == []
    assert failures(tmp_path, "sort", choose, lambda: X.sort(stable=True)) == ["sort_1"]


@pytest.mark.parametrize(
    ("operator", "place", "run"),
    [
        ("argmax", 7, lambda x: x.argmax()),
        ("argmax", -3, lambda x: x.argmax()),
        ("max", 2, lambda x: x.max(0)),
        ("kthvalue", 0, lambda x: x.kthvalue(1)),
        ("sort", 0, lambda x: x.sort()),
        ("cummax", 2, lambda x: torch.tensor([1.0, 0.0, 1.0]).cummax(0)),
    ],
)
def test_a_place_of_another_value_fails_also_where_few_numbers_are_alike(
    tmp_path: Path, operator: str, place: int, run: Callable[[torch.Tensor], Any]
) -> None:
    def choose(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return torch.full_like(result, place)
        return result[0], torch.full_like(result[1], place)

    x = torch.tensor([1.0, 1.0, 0.0])
    assert failures(tmp_path, operator, choose, lambda: run(x)) == [f"{operator}_1"]
