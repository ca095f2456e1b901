"""`tensorprobe merge`: merge, show how it goes, and say what came out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tensorprobe.ranks.merge import MergedStep, merge_results
from tensorprobe.ranks.merge_config import KINDS
from tensorprobe.ranks.result_names import show_ranks
from tensorprobe.report.compare_text import show_progress
from tensorprobe.report.merge_text import MergedLine, print_merged

__all__ = ["run_merge"]


def run_merge(
    results: str | os.PathLike[str],
    config: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str],
) -> int:
    """Merge the results of a folder and print what came out.

    Returns:
        The exit code: 2 if a result could not be merged.

    Raises:
        TensorprobeError: nothing can be merged, or the workbook cannot be written.
    """
    with show_progress(with_log=False) as progress:
        merged = merge_results(results, config, output, progress=progress)
    print_merged([_line(step) for step in merged.steps], merged.notes, merged.problems)
    return 2 if merged.problems else 0


def _line(step: MergedStep) -> MergedLine:
    return MergedLine(
        step=step.step,
        kind=KINDS[step.mode],
        ranks=show_ranks(step.ranks),
        count=len(step.ranks),
        rows=step.rows,
        sheets=step.sheets,
        file=step.file,
    )
