"""The cells that describe one side of a row: dtype, shape, requires_grad, statistics, checksum."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from tensorprobe.store.leaves import Leaf

__all__ = [
    "UNMATCHED",
    "checksum_cell",
    "dtype_cell",
    "is_plain",
    "number_cell",
    "requires_grad_cell",
    "shape_cell",
    "shape_text",
]

UNMATCHED = "N/A"
"""What stands in every cell of a side that is not there."""

# What the older tools show by its own name, and what they take for a text.
_OWN_NAMES = frozenset(("slice", "ellipsis", "torch.Size", "torch.ProcessGroup"))
_TEXTS = frozenset(("torch.dtype", "torch.device", "torch.distributed.ReduceOp"))
# The two keywords of collectives that are shown by their type's bare name.
_PEER_RANKS = frozenset(("kwargs.src", "kwargs.dst"))
_GRADS = {True: "True", False: "False", None: "N/A"}


def dtype_cell(leaf: Leaf) -> str:
    """Return the dtype of a tensor, or the type of another value as the older tools write it."""
    kind = leaf.kind
    if kind == "tensor":
        return leaf.dtype
    if kind in _TEXTS:
        return "<class 'str'>"
    if kind == "none":
        return "None"
    if kind == "torch.memory_format":
        return "<class 'NoneType'>"
    if kind in _OWN_NAMES or leaf.max is None:
        return kind
    if kind == "int" and leaf.place in _PEER_RANKS:
        return kind
    # Of a numpy scalar too, the class that its value has in the file.
    return f"<class '{type(leaf.max).__name__}'>"


def is_plain(leaf: Leaf) -> bool:
    """Whether a value is a number, a text or a flag, which the table shows by its class."""
    return (
        leaf.max is not None
        and leaf.kind != "tensor"
        and leaf.kind not in _OWN_NAMES
        and not (leaf.kind == "int" and leaf.place in _PEER_RANKS)
    )


def shape_cell(leaf: Leaf) -> str:
    """Return the shape as torch prints it."""
    if leaf.kind == "tensor":
        return shape_text(leaf.shape)
    if leaf.kind == "none":
        return "None"
    return "(3,)" if leaf.kind == "slice" else shape_text(leaf.shape)


@lru_cache(maxsize=100_000)
def shape_text(shape: tuple[int, ...]) -> str:
    """Return the text of a shape."""
    return str(list(shape))


def requires_grad_cell(leaf: Leaf) -> str:
    """Return True or False as a text, N/A where a value has no such thing."""
    return _GRADS[leaf.requires_grad]


def number_cell(number: Any) -> Any:
    """Return a statistic as its cell shows it.

    >>> number_cell(None), number_cell(float("nan")), number_cell(0.5)
    ('None', 'Nan', 0.5)
    """
    if number is None:
        return "None"
    return "Nan" if number != number else number


def checksum_cell(leaf: Leaf) -> str:
    """Return what stands for a value's content; of what is no tensor, that of its text."""
    if leaf.kind == "tensor":
        return leaf.checksum or "None"
    if leaf.kind == "none":
        return "N/A"
    if leaf.kind == "torch.ProcessGroup" or (leaf.kind == "int" and leaf.place in _PEER_RANKS):
        return str(leaf.max)
    text = "" if leaf.max is None else str(leaf.max)
    if leaf.kind == "torch.Size":
        text = shape_cell(leaf)
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
