"""The columns of an online check's table: those of the older tool, and ours behind them."""

from __future__ import annotations

__all__ = ["ONLINE_TITLES"]

ONLINE_TITLES = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU max",
    "NPU min",
    "NPU mean",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Cosine",
    "MaxAbsErr",
    "MaxRelativeErr",
    "Accuracy Reached or Not",
    "NPU_Stack_Info",
    "Err_message",
    # The older tool stops here; who reads by title sees no difference.
    "Within Rounding",
    "Relative Distance",
    "Tolerance",
    "Operator",
    "Direction",
    "Step",
    "Place",
)
