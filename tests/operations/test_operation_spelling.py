"""Which operation a name means."""

from __future__ import annotations

import operator

import pytest
import torch

from tensorprobe.operations.spelling import operation_of, spellings_of, writes_by_name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Aten.add_.Tensor.0.forward", "add_"),
        ("Tensor.__iadd__.3.forward", "__iadd__"),
        ("Module.blocks.0.drop.Dropout2d.forward.0", "dropout2d"),
        ("Torch.linalg.svd.0.forward", "linalg.svd"),
        ("anything", "anything"),
    ],
)
def test_a_calls_operation(name: str, wanted: str) -> None:
    assert operation_of(name) == wanted


@pytest.mark.parametrize("symbol", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"])
def test_an_operator_in_place_is_the_function_that_torch_has_for_it(symbol: str) -> None:
    one = torch.tensor([7.0, 3.0])
    name = spellings_of(f"__i{symbol}__")[-1]
    assert spellings_of(f"__{symbol}__")[-1] == name
    wanted = getattr(operator, symbol)(one, 2.0)
    assert torch.equal(getattr(torch, name)(one, 2.0), wanted)


def test_operands_the_other_way_round_are_another_operation_where_their_order_counts() -> None:
    assert spellings_of("__radd__")[-1] == "add"
    assert spellings_of("__rsub__")[-1] == "rsub"
    assert spellings_of("__rtruediv__")[-1] == "rtrue_divide"


@pytest.mark.parametrize("name", ["add_", "__iand__", "__setitem__", "add.out", "index_put_.x"])
def test_names_that_say_that_they_write(name: str) -> None:
    assert writes_by_name(name)


@pytest.mark.parametrize(
    "name", ["add", "__invert__", "__int__", "__index__", "__iter__", "__add__", "linalg.inv"]
)
def test_names_that_do_not(name: str) -> None:
    assert not writes_by_name(name)
