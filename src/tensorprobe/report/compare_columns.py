"""The columns of the comparison tables, as users of the older tools know them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

__all__ = ["BENCH_MAX", "NAME", "NPU_MAX", "Mode", "columns_of", "metrics_of", "mode_of_columns"]

Mode = Literal["tensor", "statistics", "md5"]

NAME, NPU_MAX, BENCH_MAX = "NPU Name", "NPU max", "Bench max"

_NAMES = (
    NAME,
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
)
_STATISTICS = (
    NPU_MAX,
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    BENCH_MAX,
    "Bench min",
    "Bench mean",
    "Bench l2norm",
)
_CONSISTENT = "Requires_grad Consistent"
_TENSOR_METRICS = (
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
)
_SUMMARY_METRICS = (
    "Max diff",
    "Min diff",
    "Mean diff",
    "L2norm diff",
    "MaxRelativeErr",
    "MinRelativeErr",
    "MeanRelativeErr",
    "NormRelativeErr",
)
_CHECKSUM = "NPU MD5"
_TENSOR = (
    *_NAMES,
    *_TENSOR_METRICS,
    *_STATISTICS,
    _CONSISTENT,
    "Accuracy Reached or Not",
    "Err_message",
)
_SUMMARY = (
    *_NAMES,
    *_SUMMARY_METRICS,
    *_STATISTICS,
    _CONSISTENT,
    "Result",
    "Err_message",
)
_MD5 = (*_NAMES, _CHECKSUM, "BENCH MD5", _CONSISTENT, "Result")


def columns_of(mode: Mode, *, with_stack: bool) -> tuple[str, ...]:
    """Return the titles of a mode's table, in order.

    >>> columns_of("md5", with_stack=True)[-3:]
    ('Requires_grad Consistent', 'Result', 'NPU_Stack_Info')
    """
    stack = ("NPU_Stack_Info",) if with_stack else ()
    if mode == "tensor":
        return (*_TENSOR, *stack, "Data_name")
    return (*(_SUMMARY if mode == "statistics" else _MD5), *stack)


def metrics_of(mode: Mode) -> tuple[str, ...]:
    """Return the titles of what a mode measures, in order; of checksums there is nothing.

    >>> metrics_of("tensor")[-1]
    'Requires_grad Consistent'
    """
    if mode == "md5":
        return ()
    return (*(_TENSOR_METRICS if mode == "tensor" else _SUMMARY_METRICS), _CONSISTENT)


def mode_of_columns(titles: Collection[str]) -> Mode | None:
    """Tell from its columns what a table compares; None where it is no such table.

    >>> mode_of_columns(["NPU Name", "Cosine", "MaxAbsErr"])
    'tensor'
    """
    if NAME not in titles:
        return None
    if _TENSOR_METRICS[0] in titles:
        return "tensor"
    if _SUMMARY_METRICS[0] in titles:
        return "statistics"
    return "md5" if _CHECKSUM in titles else None
