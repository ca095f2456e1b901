"""The cells of a detail stand under their titles."""

from __future__ import annotations

import torch

from tensorprobe.precheck.columns import metric_cells
from tensorprobe.precheck.judge import judge_output
from tensorprobe.report.accuracy_titles import METRIC_TITLES


def test_errors_of_small_values_are_counted_under_both_names_of_the_older_tools() -> None:
    truth = torch.tensor([2.0**-21, 2.0**-22, 0.0, 2.0**-23, 1.0], dtype=torch.float64)
    wrong = truth.float()
    wrong[0] += 2.0**-28
    cells = metric_cells(judge_output(wrong, truth, length=1))
    shown = dict(zip(METRIC_TITLES, cells, strict=False))
    assert shown["小值域错误占比"] == shown["绝对误差错误率"] == "0.25"
    assert shown["双百指标"] == "1" and shown["相对误差错误率"] == "0"
    assert len(cells) == len(METRIC_TITLES) + 3
