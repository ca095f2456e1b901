"""`compare` and `compare_distributed` as the older tools have them.

What cannot be compared ends a script with one line and exit code 2, as it ends the command.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from tensorprobe.errors import TensorprobeError

__all__ = ["CompareError", "compare", "compare_distributed", "deprecated"]

_P = ParamSpec("_P")
_told: set[str] = set()


class CompareError(TensorprobeError, SystemExit):
    """Nothing could be compared; the reason is on the screen.

    It can be caught like every error of tensorprobe. A script that does not catch it ends without a
    traceback: Python prints none for what is a `SystemExit`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.code = 2


def deprecated(function: Callable[_P, None]) -> Callable[_P, None]:
    """Return a function that says, the first time, what msprobe says of it."""

    @functools.wraps(function)
    def tell_first(*args: _P.args, **kwargs: _P.kwargs) -> None:
        name = function.__name__
        if name not in _told:
            _told.add(name)
            sys.stderr.write(
                f"msprobe: {name}() is deprecated since 2025-09-30 and goes on working here; the "
                "command is `msprobe -f pytorch compare -i compare.json -o ./output`\n"
            )
        function(*args, **kwargs)

    return tell_first


def compare(
    input_param: Mapping[str, Any],
    output_path: str | os.PathLike[str],
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
    highlight: bool = False,
    *,
    data_mapping: str | os.PathLike[str] | Mapping[str, str] | None = None,
    diff_analyze: bool = False,
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
        diff_analyze: only find the first value that differs, and write it as JSON.

    Raises:
        CompareError: a dump cannot be opened, an argument cannot be used, or a result cannot
            be written. It is a `tensorprobe.TensorprobeError`.
    """
    from tensorprobe.blame.after_compare import judge_for
    from tensorprobe.compare.command import compare_dumps
    from tensorprobe.system.standard_streams import complain

    has_mapping = data_mapping is not None
    # The two JSON files take the place of the table and of the advice.
    advises = auto_analyze and not diff_analyze
    try:
        compare_dumps(
            input_param,
            None,
            output_path,
            fuzzy=fuzzy_match,
            mapping=data_mapping,
            highlight=highlight,
            advise=advises,
            first_difference=diff_analyze,
            stack=stack_mode or None,
            formats=() if diff_analyze else ("xlsx",),
            jobs=0,
            find_culprit=judge_for(
                input_param,
                advise=advises,
                first_difference=diff_analyze,
                has_mapping=has_mapping,
            ),
        )
    except TensorprobeError as err:
        complain(str(err))
        raise CompareError(str(err)) from err


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
        CompareError: as `compare` does.
    """
    folders = {
        "npu_path": npu_dump_dir,
        "bench_path": bench_dump_dir,
        "is_print_compare_log": is_print_compare_log,
    }
    compare(folders, output_path, **kwargs)
