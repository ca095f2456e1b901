"""The column titles of a pre-check's two files, as the older tools write them, and ours after."""

from __future__ import annotations

__all__ = [
    "DETAIL_TITLES",
    "FIRST_DETAIL_TITLES",
    "FIRST_RESULT_TITLES",
    "METRIC_TITLES",
    "RESULT_TITLES",
]

# Our files had these alone before the older rule got its columns; such a file is still resumed.
FIRST_RESULT_TITLES = ("API name", "Forward Test Success", "Backward Test Success", "Message")

# The older tools stop after the message; who reads by title sees no difference.
RESULT_TITLES = (*FIRST_RESULT_TITLES, "Older Rule Forward", "Older Rule Backward")

METRIC_TITLES = (
    "余弦相似度",
    "最大绝对误差",
    "双百指标",
    "双千指标",
    "双万指标",
    "二进制一致错误率",
    "误差均衡性",
    "均方根误差",
    "小值域错误占比",
    "相对误差最大值",
    "相对误差平均值",
    "inf/nan错误率",
    "相对误差错误率",
    "绝对误差错误率",
    "ULP误差最大值",
    "ULP误差平均值",
    "ULP误差大于阈值占比",
)

FIRST_DETAIL_TITLES = (
    "API Name",
    "Bench Dtype",
    "DEVICE Dtype",
    "Shape",
    *METRIC_TITLES,
    "Status",
    "Message",
    "Relative Distance",
    "Tolerance",
)

DETAIL_TITLES = (*FIRST_DETAIL_TITLES, "Older Rule")
