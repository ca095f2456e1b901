"""`compare` and `compare_distributed` as the older tools have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["compare", "compare_distributed"]


def compare(
    input_param: Mapping[str, Any],
    output_path: str | os.PathLike[str],
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    highlight: bool = False,
    *,
    data_mapping: str | os.PathLike[str] | Mapping[str, str] | None = None,
) -> None:
    """Compare the dumps of two runs, write the table, and print what came out.

    Args:
        input_param: `npu_json_path` and `bench_json_path`, or the older `npu_pkl_path` and
            `bench_pkl_path`; `stack_json_path`, `is_print_compare_log`, `npu_dump_data_dir` and
            `bench_dump_data_dir` if wanted.
        output_path: the folder of the results; it is made if need be.
        stack_mode: show call stacks, where `stack_json_path` is given; else they are found.
        auto_analyze: say and write which value is the first that fails, and the likely cause.
        fuzzy_match: match calls that differ in their call number alone.
        highlight: mark suspicious rows red and yellow.
        data_mapping: a YAML file, or a dict, with names of values and of their partners.

    Raises:
        tensorprobe.TensorprobeError: a dump cannot be opened, an argument cannot be used, or a
            result cannot be written.
    """
    from tensorprobe.compare.command import compare_dumps

    compare_dumps(
        input_param,
        None,
        output_path,
        fuzzy=fuzzy_match,
        mapping=data_mapping,
        highlight=highlight,
        advise=auto_analyze,
        first_difference=False,
        stack=stack_mode or None,
        formats=("xlsx",),
        jobs=0,
    )


def compare_distributed(
    npu_dump_dir: str | os.PathLike[str],
    bench_dump_dir: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    *,
    is_print_compare_log: bool = True,
    **kwargs: Any,
) -> None:
    """Compare the dumps of two runs of many ranks, each with its partner.

    Args:
        npu_dump_dir: the folder of one step of the run under test, with its ranks.
        bench_dump_dir: the same of the run that is trusted.
        output_path: the folder of the results; it is made if need be.
        is_print_compare_log: print a line for every call.
        **kwargs: the optional arguments of `compare`. Call stacks are found by themselves, so
            `stack_mode` has no effect.

    Raises:
        tensorprobe.TensorprobeError: as `compare` does.
    """
    folders = {
        "npu_path": npu_dump_dir,
        "bench_path": bench_dump_dir,
        "is_print_compare_log": is_print_compare_log,
    }
    compare(folders, output_path, **kwargs)
