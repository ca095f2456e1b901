"""Gradients are paired across tools where one autograd node does the whole call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tensorprobe.pairing.gradient_order import _ONE_NODE

BINARY = frozenset(
    ("add", "atan2", "bmm", "div", "iadd", "imul", "isub", "itruediv", "maximum", "minimum", "mm",
     "mul", "mv", "radd", "rmul", "sub", "truediv")
)  # fmt: skip
LOSSES = ("huber_loss", "mse_loss", "smooth_l1_loss")


def leaf(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, requires_grad=True)


def convolve(name: str, dims: int) -> Callable[[], torch.Tensor]:
    return lambda: getattr(functional, name)(
        leaf(1, 2, *[4] * dims), leaf(2, 2, *[3] * dims), leaf(2)
    )


WITH_ARGUMENTS: dict[str, Callable[[], torch.Tensor]] = {
    "adaptive_avg_pool2d": lambda: functional.adaptive_avg_pool2d(leaf(1, 2, 4, 4), 2),
    "addcdiv": lambda: torch.addcdiv(leaf(2), leaf(2), leaf(2)),
    "addcmul": lambda: torch.addcmul(leaf(2), leaf(2), leaf(2)),
    "addmm": lambda: torch.addmm(leaf(3), leaf(2, 4), leaf(4, 3)),
    "avg_pool2d": lambda: functional.avg_pool2d(leaf(1, 2, 4, 4), 2),
    "avg_pool3d": lambda: functional.avg_pool3d(leaf(1, 2, 4, 4, 4), 2),
    "baddbmm": lambda: torch.baddbmm(leaf(1, 2, 3), leaf(1, 2, 4), leaf(1, 4, 3)),
    "batch_norm": lambda: functional.batch_norm(
        leaf(4, 2), torch.zeros(2), torch.ones(2), leaf(2), leaf(2), training=True
    ),
    "binary_cross_entropy": lambda: functional.binary_cross_entropy(leaf(2), torch.rand(2)),
    "bmm": lambda: torch.bmm(leaf(2, 3, 4), leaf(2, 4, 3)),
    "cat": lambda: torch.cat([leaf(2), leaf(3)]),
    "chunk": lambda: leaf(4).chunk(2)[0],
    "clamp": lambda: leaf(2).clamp(0.2),
    "conv1d": convolve("conv1d", 1),
    "conv2d": convolve("conv2d", 2),
    "conv3d": convolve("conv3d", 3),
    "conv_transpose1d": convolve("conv_transpose1d", 1),
    "conv_transpose2d": convolve("conv_transpose2d", 2),
    "conv_transpose3d": convolve("conv_transpose3d", 3),
    "cumsum": lambda: leaf(3).cumsum(0),
    "embedding": lambda: functional.embedding(torch.tensor([1, 2]), leaf(4, 3)),
    "flip": lambda: leaf(3).flip(0),
    "gather": lambda: leaf(3).gather(0, torch.tensor([1])),
    "glu": lambda: functional.glu(leaf(4)),
    "group_norm": lambda: functional.group_norm(leaf(2, 4, 3), 2, leaf(4), leaf(4)),
    "index_select": lambda: leaf(3).index_select(0, torch.tensor([1])),
    "layer_norm": lambda: functional.layer_norm(leaf(2, 4), (4,), leaf(4), leaf(4)),
    "lerp": lambda: torch.lerp(leaf(2), leaf(2), 0.3),
    "log_softmax": lambda: functional.log_softmax(leaf(2, 3), -1),
    "logsumexp": lambda: leaf(2, 3).logsumexp(-1),
    "masked_fill": lambda: leaf(2).masked_fill(torch.tensor([True, False]), 0.0),
    "max_pool2d": lambda: functional.max_pool2d(leaf(1, 2, 4, 4), 2),
    "max_pool3d": lambda: functional.max_pool3d(leaf(1, 2, 4, 4, 4), 2),
    "mm": lambda: torch.mm(leaf(2, 3), leaf(3, 4)),
    "mv": lambda: torch.mv(leaf(2, 3), leaf(3)),
    "nll_loss": lambda: functional.nll_loss(leaf(2, 3), torch.tensor([0, 2])),
    "permute": lambda: leaf(2, 3).permute(1, 0),
    "pow": lambda: leaf(3).pow(3),
    "repeat": lambda: leaf(3).repeat(2),
    "reshape": lambda: leaf(2, 3).reshape(6),
    "roll": lambda: leaf(3).roll(1),
    "select": lambda: leaf(3).select(0, 1),
    "softmax": lambda: functional.softmax(leaf(2, 3), -1),
    "split": lambda: leaf(4).split(2)[0],
    "squeeze": lambda: leaf(1, 2).squeeze(0),
    "stack": lambda: torch.stack([leaf(2), leaf(2)]),
    "t": lambda: leaf(2, 3).t(),
    "transpose": lambda: leaf(2, 3).transpose(0, 1),
    "tril": lambda: leaf(3, 3).tril(),
    "triu": lambda: leaf(3, 3).triu(),
    "unbind": lambda: leaf(2, 3).unbind()[0],
    "unsqueeze": lambda: leaf(2).unsqueeze(0),
    "view": lambda: leaf(2, 3).view(6),
    "where": lambda: torch.where(torch.tensor([True, False]), leaf(2), leaf(2)),
}


def result_of(name: str) -> torch.Tensor:
    if name in WITH_ARGUMENTS:
        return WITH_ARGUMENTS[name]()
    if name in LOSSES:
        return getattr(functional, name)(leaf(2), leaf(2))
    if name in BINARY:
        # A leaf that needs a gradient may not be written into: the operators are those of add.
        plain = (
            f"__{name.removeprefix('i')}__" if name not in ("atan2", "maximum", "minimum") else ""
        )
        return getattr(leaf(2), plain or name)(leaf(2))
    function = getattr(functional, name, None) or getattr(torch, name)
    return function(leaf(4))


@pytest.mark.parametrize("name", sorted(_ONE_NODE))
def test_one_node_does_the_call(name: str) -> None:
    node = result_of(name).grad_fn
    assert node is not None
    before = [found for found, _ in node.next_functions if found is not None]
    assert before, "the gradients of the arguments are what the node returns"
    assert {type(found).__name__ for found in before} == {"AccumulateGrad"}


@pytest.mark.parametrize("name", ["cross_entropy", "l1_loss", "kl_div", "normalize"])
def test_calls_of_several_nodes_are_not_listed(name: str) -> None:
    assert name not in _ONE_NODE
