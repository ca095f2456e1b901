"""Made-up inputs are of the kind that the call needs."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall
from tensorprobe.records import TensorValue
from tensorprobe.replay.random_inputs import make_inputs, seed_of


def make(api: str, *values: TensorValue, seed: int = 5) -> list[torch.Tensor]:
    return make_inputs(ApiCall("Torch", api, 0, "forward"), values, seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_lie_in_the_recorded_range(dtype: str) -> None:
    (tensor,) = make("add", TensorValue(f"torch.{dtype}", (50, 3), 0.75, -0.1))
    assert tensor.dtype is getattr(torch, dtype) and tensor.shape == (50, 3)
    assert tensor.max() <= 0.75 and tensor.min() >= torch.tensor(-0.1, dtype=tensor.dtype)
    assert tensor.max() - tensor.min() > 0.5


def test_integers_are_valid_indices_and_reach_both_ends() -> None:
    (tensor,) = make("embedding", TensorValue("torch.int64", (40,), 9, 2))
    assert (int(tensor.min()), int(tensor.max())) == (2, 9)


def test_classes_to_be_left_out_do_not_become_classes() -> None:
    logits = TensorValue("torch.float32", (4, 3), 1.0, -1.0)
    _, target = make("cross_entropy", logits, TensorValue("torch.int64", (4,), 2, -100))
    assert int(target.min()) >= 0 and int(target.max()) <= 2


def test_masks_are_masks() -> None:
    low = float("-inf")
    (mask,) = make("add", TensorValue("torch.float32", (8, 8), 0.0, low))
    assert set(mask.flatten().tolist()) == {0.0, low}
    assert not bool((mask == low).all(-1).any())
    (ones,) = make("mul", TensorValue("torch.float32", (100,), 1.0, 0.0, 0.25, 5.0))
    assert set(ones.tolist()) == {0.0, 1.0}
    (bools,) = make("where", TensorValue("torch.bool", (100,), True, False))
    assert bools.dtype is torch.bool and 0 < int(bools.sum()) < 100
    assert not bool(make("where", TensorValue("torch.bool", (9,), False, False))[0].any())
    assert bool(make("where", TensorValue("torch.bool", (9,), True, True))[0].all())


def test_a_mask_that_is_written_through_chooses_as_many_as_there_are_values() -> None:
    target = TensorValue("torch.float32", (10,), 1.0, 0.0)
    chosen = TensorValue("torch.bool", (10,), True, False)
    _, mask, _ = make("__setitem__", target, chosen, TensorValue("torch.float32", (4,), 1.0, 0.0))
    assert int(mask.sum()) == 4


def test_targets_that_are_distributions_sum_to_one() -> None:
    logits = TensorValue("torch.float64", (4, 3), 1.0, -1.0)
    _, target = make("cross_entropy", logits, TensorValue("torch.float64", (4, 3), 0.9, 0.0))
    assert torch.allclose(target.sum(1), torch.ones(4, dtype=torch.float64))


def test_matrices_have_what_the_call_needs() -> None:
    value = TensorValue("torch.float32", (5, 5), 2.0, -2.0)
    torch.linalg.cholesky(make("linalg.cholesky", value)[0])
    (symmetric,) = make("linalg.eigh", value)
    assert torch.equal(symmetric, symmetric.T)
    assert float(torch.linalg.cond(make("linalg.inv", value)[0])) < 1e3


def test_indices_that_are_written_to_do_not_repeat() -> None:
    target = TensorValue("torch.float32", (10,), 1.0, 0.0)
    _, index, _ = make("index_copy", target, TensorValue("torch.int64", (8,), 9, 0), target)
    assert len(set(index.tolist())) == 8


def test_boundaries_are_sorted() -> None:
    value = TensorValue("torch.float32", (20,), 1.0, 0.0)
    (boundaries, _) = make("searchsorted", value, value)
    assert torch.equal(boundaries, boundaries.sort().values)


def test_the_same_seed_gives_the_same_numbers() -> None:
    value = TensorValue("torch.float32", (20,), 1.0, 0.0)
    assert torch.equal(make("add", value)[0], make("add", value)[0])
    assert not torch.equal(make("add", value)[0], make("add", value, seed=6)[0])
    assert seed_of(1, "Torch.add.0.forward") != seed_of(1, "Torch.add.1.forward")


def test_unknown_ranges_and_dtypes() -> None:
    (tensor,) = make("add", TensorValue("torch.float32", (3,), float("nan"), float("nan")))
    assert bool(torch.isfinite(tensor).all())
    (complex_,) = make("add", TensorValue("torch.complex64", (9,), 2.0, 1.0))
    assert bool(((complex_.abs() > 0.99) & (complex_.abs() < 2.01)).all())
    with pytest.raises(RebuildError, match="no dtype"):
        make("add", TensorValue("torch.float3", (3,)))
