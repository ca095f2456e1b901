"""The small commands of `msprobe`, as words of tensorprobe.

run_overflow_check, also the script   ─► tensorprobe overflow, of one dump.json
overflow_check (26.2.0), nan_analyze  ─► tensorprobe overflow, of all ranks of a step
merge_result                          ─► tensorprobe merge
"""

from __future__ import annotations

import argparse

__all__ = [
    "MERGE_EXAMPLES",
    "OVERFLOW_EXAMPLES",
    "STEP_EXAMPLES",
    "add_merge_flags",
    "add_overflow_dump_flag",
    "add_overflow_flags",
    "add_step_flags",
]

OVERFLOW_EXAMPLES = """\
examples:
  msprobe -f pytorch run_overflow_check -api_info ./dump_path/step0/rank0/dump.json
  msprobe -f pytorch run_overflow_check -api_info ./dump.json -d 0
"""

STEP_EXAMPLES = """\
examples:
  msprobe overflow_check -i ./dump_path/step0 -o ./output
  msprobe -f pytorch nan_analyze -i ./dump_path/step0

The last lines, and anomaly_analyze_TIME.json, say which call over all ranks was the first to make a
value that is not finite; overflow_check_result_TIME.csv judges each overflow.
"""

MERGE_EXAMPLES = """\
examples:
  msprobe -f pytorch merge_result -i ./input_dir -o ./output_dir -config ./config.yaml

The config.yaml names the calls, and the columns if not all are wanted:
  api:
  - Distributed.all_reduce
  compare_index:
  - Max diff
"""

_NO_JIT = "has no effect: calls are repeated on the CPU"


def add_overflow_dump_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of `msprobe run_overflow_check` that names the dump."""
    parser.add_argument(
        "-api_info", "--api_info_file", dest="dump", required=True, help="a dump.json"
    )


def add_overflow_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `run_overflow_check`, the command and the script."""
    add = parser.add_argument
    # With a value in one state of the tool, without one in another.
    add("-j", "--jit_compile", nargs="?", const=True, help=_NO_JIT)
    add("-d", "--device", type=int, help="repeat each call on this device as well")
    parser.set_defaults(translate=_overflow, backward=None)


def _overflow(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    if arguments.jit_compile is not None:
        notices.append(f"-j {_NO_JIT}")
    if arguments.backward is not None:
        notices.append("-backward has no effect: overflows of the way back are not judged")
    device = [] if arguments.device is None else [f"--device={arguments.device}"]
    return ["overflow", *device, "--", arguments.dump]


def add_step_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `overflow_check` and `nan_analyze`."""
    add = parser.add_argument
    add("-i", "--input_path", required=True, help="a step folder, with its ranks")
    add("-o", "--output_path", default="./output", help="where json and csv go (./output)")
    parser.set_defaults(translate=_step)


def _step(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    output = f"--output={arguments.output_path}"
    return ["overflow", output, "--origins-json", "--", arguments.input_path]


def add_merge_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `merge_result`."""
    add = parser.add_argument
    add("-i", "--input_dir", required=True, help="the folder of the results of compare")
    add("-o", "--output_dir", required=True, help="where the merged table goes")
    add("-config", "--config-path", required=True, help="a YAML file: api and compare_index")
    parser.set_defaults(translate=_merge)


def _merge(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    output, config = arguments.output_dir, arguments.config_path
    return ["merge", f"--output={output}", f"--config={config}", "--", arguments.input_dir]
