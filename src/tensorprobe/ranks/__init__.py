"""What only the results of many ranks show together: today, merging them into one workbook."""

from __future__ import annotations

from tensorprobe.ranks.merge import MergedStep, MergeResult, merge_results

__all__ = ["MergeResult", "MergedStep", "merge_results"]
