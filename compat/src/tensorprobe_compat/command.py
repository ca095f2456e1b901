"""The command `msprobe`: its arguments in, one command of tensorprobe out.

Exit codes are those of tensorprobe: see tensorprobe.ending.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from tensorprobe.clean_text import one_line
from tensorprobe.cli import main as tensorprobe
from tensorprobe.ending import Manner, ended

__all__ = ["main"]

_ERROR_DATA = "./ut_error_data"
# What the older command also had: what does its job here.
_ELSEWHERE = {
    "api_precision_compare": "`tensorprobe precheck` judges each call against the CPU by itself",
    "code_mapping": "`tensorprobe show DUMP CALL` shows where a call was made",
    "config_check": "`tensorprobe doctor` says what a machine has to work with",
    "graph": "`tensorprobe show DUMP` shows the calls of a run as a tree under their modules",
    "merge_result": "`tensorprobe compare` writes one table for each rank",
    "nan_analyze": "`tensorprobe overflow DUMP` names the first call that made a NaN or infinity",
    "op_generate": "`tensorprobe precheck --save-errors DIR` writes a script for each failing call",
    "parse": "`tensorprobe show DUMP` looks into a dump",
}


_EXAMPLES = """\
examples:
  msprobe -f pytorch compare -i ./compare.json -o ./output -s
  msprobe -f pytorch compare -i ./compare.json -da
  msprobe -f pytorch run_ut -api_info ./dump_path/step0/rank0/dump.json
  msprobe -f pytorch run_overflow_check -api_info ./dump_path/step0/rank0/dump.json

Everything is done by tensorprobe, whose own commands can do more: see tensorprobe --help.
"""

_COMPARE_EXAMPLES = """\
examples:
  msprobe -f pytorch compare -i ./compare.json -o ./output -s
  msprobe -f pytorch compare -i ./compare.json -hl -c
  msprobe -f pytorch compare -i ./compare.json -dm data_mapping.yaml
  msprobe -f pytorch compare -i ./compare.json -da

A compare.json names a dump.json of each run, or a step folder with many ranks:
  {"npu_path": "./npu_dump/step0", "bench_path": "./bench_dump/step0"}
"stack_path" names a stack.json, "is_print_compare_log": false prints no line per call; debug.json
files, of single values, are compared in the same way.

Exit code 0: compared, whether or not values differ. 2: an input cannot be read, or something of it
is missing.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of msprobe by tensorprobe and return the exit code."""
    words: list[str] = []
    # Its own arguments first: what is wrong with them is told as what is wrong with ours.
    return ended(partial(_translate, argv, words)) or tensorprobe(words)


def _translate(argv: Sequence[str] | None, words: list[str], _: Manner) -> int:
    """Translate a command into words of tensorprobe; returns an exit code if it cannot be."""
    parser = _parser()
    # What follows a command that is not here need not be understood.
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.framework != "pytorch":
        return _refuse(f"{arguments.framework} dumps are not read here; only pytorch is known")
    if arguments.command in _ELSEWHERE:
        return _refuse(f"{arguments.command} is not here; {_ELSEWHERE[arguments.command]}")
    if unknown:
        return _refuse(f"{arguments.command} does not know {' '.join(unknown)}; see --help")
    translate: Callable[[argparse.Namespace], list[str]] = arguments.translate
    words += translate(arguments)
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"msprobe: {one_line(reason)}\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msprobe",
        description="The command of msprobe, answered by tensorprobe.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f", "--framework", choices=("pytorch", "mindspore"), default="pytorch", help="pytorch"
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    _add_compare(
        commands.add_parser(
            "compare",
            help="compare the dumps of two runs",
            epilog=_COMPARE_EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_run_ut(commands.add_parser("run_ut", help="check each recorded call by itself"))
    several = commands.add_parser("multi_run_ut", help="the same by several processes")
    _add_run_ut(several)
    several.add_argument("-n", "--num_splits", type=int, default=8, help="processes (8)")
    _add_overflow(commands.add_parser("run_overflow_check", help="judge recorded overflows"))
    for name in _ELSEWHERE:
        commands.add_parser(name, add_help=False)
    return parser


def _add_compare(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-i", "--input_path", required=True, help="a compare.json")
    output = "folder of the results (./output)"
    add("-o", "--output_path", nargs="?", default="./output", const="./output", help=output)
    add("-s", "--stack_mode", action="store_true", help="show stacks, if stack_path is given")
    add("-c", "--compare_only", action="store_true", help="do not say where to look first")
    add("-f", "--fuzzy_match", action="store_true", help="call numbers may differ")
    add("-hl", "--highlight", action="store_true", help="mark suspicious rows red and yellow")
    add("-dm", "--data_mapping", help="a YAML file with names of values and of their partners")
    add("-da", "--diff_analyze", action="store_true", help="only find the first that differs")
    parser.set_defaults(translate=_compare)


def _compare(arguments: argparse.Namespace) -> list[str]:
    words = ["compare", f"--output={arguments.output_path}"]
    if arguments.stack_mode:
        words.append("--stack")
    if arguments.compare_only:
        words.append("--no-advice")
    if arguments.fuzzy_match:
        words.append("--fuzzy")
    if arguments.highlight:
        words.append("--highlight")
    if arguments.data_mapping is not None:
        words.append(f"--mapping={arguments.data_mapping}")
    if arguments.diff_analyze:
        # The two JSON files take the place of the table and of the advice.
        words += ["--first-diff", "--format=", "--no-advice"]
    return [*words, "--", arguments.input_path]


def _add_run_ut(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-api_info", "--api_info_file", required=True, help="a dump.json")
    add("-o", "--out_path", default=".", help="where the result files go (.)")
    add("-save_error_data", action="store_true", help=f"keep failing calls in {_ERROR_DATA}")
    add("-j", "--jit_compile", action="store_true", help="turn the NPU's compiler on")
    add("-d", "--device", nargs="+", type=int, default=[], help="numbers of the devices")
    add("-csv_path", "--result_csv_path", help="go on where the run of this result file stopped")
    add("-f", "--filter_api", action="store_true", help="check calls of one kind once")
    add("-config", "--config_path", help="a config.json with white_list and black_list")
    parser.set_defaults(translate=_run_ut, num_splits=1)


def _run_ut(arguments: argparse.Namespace) -> list[str]:
    words = ["precheck", f"--output={arguments.out_path}", f"--jobs={arguments.num_splits}"]
    error_data = _ERROR_DATA
    if arguments.config_path is not None:
        from tensorprobe import load_config

        config = load_config(arguments.config_path, task="run_ut")
        words += [f"--include={name}" for name in config.white_list]
        words += [f"--exclude={name}" for name in config.black_list]
        error_data = str(config.error_data_path or error_data)
    if arguments.save_error_data:
        words.append(f"--save-errors={error_data}")
    words.append("--jit-compile" if arguments.jit_compile else "--no-jit-compile")
    words += [f"--device={number}" for number in arguments.device]
    if arguments.result_csv_path is not None:
        words.append(f"--resume={arguments.result_csv_path}")
    if arguments.filter_api:
        words.append("--dedupe")
    return [*words, "--", arguments.api_info_file]


def _add_overflow(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-api_info", "--api_info_file", required=True, help="a dump.json")
    add("-j", "--jit_compile", help="has no effect: calls are repeated on the CPU")
    add("-d", "--device", type=int, help="repeat each call on this device as well")
    parser.set_defaults(translate=_overflow)


def _overflow(arguments: argparse.Namespace) -> list[str]:
    device = [] if arguments.device is None else [f"--device={arguments.device}"]
    return ["overflow", *device, "--", arguments.api_info_file]
