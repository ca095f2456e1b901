"""The columns of the comparison tables, as users of the older tools know them."""

from __future__ import annotations

from typing import Literal

__all__ = ["Mode", "columns_of"]

Mode = Literal["tensor", "statistics", "md5"]

_NAMES = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
)
_STATISTICS = (
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
)
_TENSOR = (
    *_NAMES,
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
    *_STATISTICS,
    "Requires_grad Consistent",
    "Accuracy Reached or Not",
    "Err_message",
)
_SUMMARY = (
    *_NAMES,
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
    *_STATISTICS,
    "Requires_grad Consistent",
    "Result",
    "Err_message",
)
_MD5 = (*_NAMES, "NPU MD5", "BENCH MD5", "Requires_grad Consistent", "Result")


def columns_of(mode: Mode, *, with_stack: bool) -> tuple[str, ...]:
    """Return the titles of a mode's table, in order.

    >>> columns_of("md5", with_stack=True)[-3:]
    ('Requires_grad Consistent', 'Result', 'NPU_Stack_Info')
    """
    stack = ("NPU_Stack_Info",) if with_stack else ()
    if mode == "tensor":
        return (*_TENSOR, *stack, "Data_name")
    return (*(_SUMMARY if mode == "statistics" else _MD5), *stack)
