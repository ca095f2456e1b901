"""Among equal values any place is right, and nothing else is."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.replay.chosen_places import (
    find_axis,
    hold_equal_values,
    is_unordered,
    place_result,
)

GIVEN = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, float("nan")]])


@pytest.mark.parametrize(
    ("operation", "got", "wanted", "axis", "is_right"),
    [
        ("topk", [[2, 1], [0, 1]], [[1, 2], [1, 0]], -1, True),
        ("topk", [[2, 2], [0, 1]], [[1, 2], [1, 0]], -1, False),  # one place twice
        ("topk", [[2, 3], [0, 1]], [[1, 2], [1, 0]], -1, False),  # another value
        ("topk", [[2, 4], [0, 1]], [[1, 2], [1, 0]], -1, False),  # no place at all
        ("topk", [[2, -1], [0, 1]], [[1, 2], [1, 0]], -1, False),
        ("max", [2, 3], [1, 3], 1, True),
        ("max", [3, 3], [1, 3], 1, False),
        ("argmax", 5, 4, None, True),
        ("argmax", 5, 1, None, False),
        ("cummax", [[0, 1, 1, 1], [0, 0, 0, 3]], [[0, 1, 2, 2], [0, 1, 2, 3]], 1, True),
    ],
)
def test_places_are_right_where_equal_values_stand(
    operation: str, got: object, wanted: object, axis: int | None, is_right: bool
) -> None:
    found = hold_equal_values(operation, GIVEN, torch.tensor(got), torch.tensor(wanted), axis)
    assert found is is_right


def test_another_shape_or_dtype_is_never_right() -> None:
    places = torch.tensor([1, 3])
    assert not hold_equal_values("max", GIVEN, places[:1], places, 1)
    assert not hold_equal_values("max", GIVEN, places.int(), places.int(), 1)


def test_the_dimension_is_found_where_each_function_has_it() -> None:
    assert find_axis("topk", (None, 3, 0), {}) == 0
    assert find_axis("kthvalue", (None, 1), {"dim": 2}) == 2
    assert find_axis("argmin", (None, 1), {}) == 1
    assert find_axis("argmax", (None,), {"axis": 0}) == 0
    assert find_axis("argsort", (None,), {}) == -1


def test_a_stable_sort_leaves_no_choice_and_topk_may_leave_the_order() -> None:
    assert place_result("argsort", (None,), {"stable": True}) is None
    assert place_result("relu", (None,), {}) is None
    assert is_unordered("topk", (None, 2, -1, True, False), {})
    assert is_unordered("topk", (None, 2), {"sorted": False})
    assert not is_unordered("topk", (None, 2), {})
