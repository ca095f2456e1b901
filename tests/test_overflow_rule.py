"""What the extents of a call's values say about it."""

from __future__ import annotations

import math

import pytest
import torch

from tensorprobe.overflow_rule import (
    LARGEST,
    Extent,
    can_overflow,
    find_overflow,
    overwritten_places,
)

HALF = "torch.float16"


@pytest.mark.parametrize("name", sorted(LARGEST))
def test_the_limits_are_those_of_torch(name: str) -> None:
    assert LARGEST[name] == torch.finfo(getattr(torch, name.removeprefix("torch."))).max


@pytest.mark.parametrize("made", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_is_an_overflow_of_finite_inputs(made: float) -> None:
    bad = Extent(HALF, made, made)
    assert find_overflow([Extent(HALF, 1.0, -1.0), Extent("int", 3, 3)], [bad]) == "nonfinite"
    assert find_overflow([bad], [bad]) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_at_the_limit_is_an_overflow_unless_an_input_is_there_too(sign: int) -> None:
    edge = Extent(HALF, max(sign * 65504.0, 0.0), min(sign * 65504.0, 0.0))
    assert find_overflow([Extent("torch.float32", 1e6, 0.0)], [edge]) == "saturated"
    assert find_overflow([Extent("float", sign * 65504.0, sign * 65504.0)], [edge]) is None
    assert find_overflow([edge], [edge]) is None


def test_integers_truths_and_empty_tensors_never_overflow() -> None:
    made = [Extent("torch.int64", 2**62, 0), Extent("torch.bool", True, False)]
    assert find_overflow([], [*made, Extent(HALF, None, None)]) is None


def test_what_moves_or_finds_numbers_makes_none() -> None:
    assert not can_overflow("Tensor.new_empty.3.forward")
    assert not can_overflow("Aten.empty.memory_format.0.forward")
    assert not can_overflow("Distributed.all_gather.0.forward")
    assert can_overflow("Distributed.reduce_scatter.0.forward")
    assert can_overflow("Module.fc.Linear.forward.0")


def test_what_is_overwritten_is_not_read() -> None:
    assert "input.0" in overwritten_places("Tensor.normal_.0.forward")
    assert "input.0" not in overwritten_places("Tensor.add_.0.forward")
    assert overwritten_places("Tensor.copy_.0.backward") == frozenset()
