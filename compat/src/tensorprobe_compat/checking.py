"""`run_ut.py` and `run_overflow_check.py`: their arguments in, one command of tensorprobe out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from tensorprobe.cli import main as tensorprobe
from tensorprobe.ending import Manner, ended
from tensorprobe.errors import ConfigError

__all__ = ["run_overflow_check", "run_ut"]

_RUN_UT_EXAMPLES = """\
examples:
  python run_ut.py -forward ./forward_info_0.json -backward ./backward_info_0.json
  python run_ut.py -forward ./forward_info_0.json -backward ./backward_info_0.json -save_error_data
  python run_ut.py -forward ./forward_info_0.json --out_path ./results

Everything is done by `tensorprobe precheck`, which can do more: see tensorprobe precheck --help.
Exit code 0: every call is right. 1: one is not. 2: something could not be read or used.
"""

_OVERFLOW_EXAMPLES = """\
examples:
  python run_overflow_check.py -forward ./forward_info_0.json

Everything is done by `tensorprobe overflow`, which can do more: see tensorprobe overflow --help.
Exit code 0: no overflow is abnormal. 1: one is. 2: something could not be read or used.
"""

_Translate = Callable[[argparse.Namespace], list[str]]


def run_ut(argv: Sequence[str] | None = None, *, error_data_path: str) -> int:
    """Check each recorded call by tensorprobe and return the exit code.

    Args:
        argv: the arguments; by default those of the process.
        error_data_path: where failing calls are kept, if that is asked for.
    """
    parser = _parser("run_ut.py", "Check each recorded call by itself.", _RUN_UT_EXAMPLES)
    add = parser.add_argument
    add("-o", "--out_path", default="./", help="where the result files go (./)")
    add("-save_error_data", action="store_true", help=f"keep failing calls in {error_data_path}")
    add("-j", "--jit_compile", action="store_true", help="turn the NPU's compiler on")
    add("-d", "--device", nargs="+", type=int, default=[], help="numbers of the devices")
    add("-csv_path", "--result_csv_path", help="go on where the run of this result file stopped")
    add("-f", "--filter_api", action="store_true", help="check calls of one kind once")

    def translate(arguments: argparse.Namespace) -> list[str]:
        words = ["precheck", f"--output={arguments.out_path}"]
        words += [f"--save-errors={error_data_path}"] if arguments.save_error_data else []
        words += ["--jit-compile"] if arguments.jit_compile else []
        words += [f"--device={number}" for number in arguments.device]
        if arguments.result_csv_path is not None:
            words.append(f"--resume={arguments.result_csv_path}")
        return words + (["--dedupe"] if arguments.filter_api else [])

    return _run(parser, argv, translate)


def run_overflow_check(argv: Sequence[str] | None = None) -> int:
    """Judge each recorded overflow by tensorprobe and return the exit code."""
    parser = _parser("run_overflow_check.py", "Judge recorded overflows.", _OVERFLOW_EXAMPLES)
    add = parser.add_argument
    add("-j", "--jit_compile", nargs="?", help="has no effect: calls are repeated on the CPU")
    add("-d", "--device", type=int, help="repeat each call on this device as well")

    def translate(arguments: argparse.Namespace) -> list[str]:
        device = [] if arguments.device is None else [f"--device={arguments.device}"]
        return ["overflow", *device]

    return _run(parser, argv, translate)


def _parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # `-forward` and `-f` are two.
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "-forward",
        "--forward_input_file",
        required=True,
        metavar="FILE",
        help="a forward_info_{pid}.json; stack_info_{pid}.json is found beside it",
    )
    add(
        "-backward",
        "--backward_input_file",
        metavar="FILE",
        help="the backward_info_{pid}.json beside it, which is found without this, too",
    )
    return parser


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, translate: _Translate) -> int:
    words: list[str] = []

    def arrange(_: Manner) -> int:
        arguments = parser.parse_args(argv)
        _require_pair(arguments.forward_input_file, arguments.backward_input_file)
        words.extend([*translate(arguments), "--", arguments.forward_input_file])
        return 0

    # Its own arguments first: what is wrong with them is told as what is wrong with ours.
    return ended(arrange) or tensorprobe(words)


def _require_pair(forward: str, backward: str | None) -> None:
    """Refuse a backward file that is not the one which is found beside the forward file.

    Raises:
        ConfigError: it is another one, or is not there.
    """
    if backward is None:
        return
    folder, name = os.path.split(forward)
    wanted = os.path.join(folder, name.replace("forward_info", "backward_info", 1))
    if os.path.realpath(backward) != os.path.realpath(wanted):
        raise ConfigError(
            f"-backward names {backward}, but {wanted} belongs to {forward}; put both files of one "
            "process into one folder, under the names that they were written with"
        )
    if os.path.exists(forward) and not os.path.exists(backward):
        raise ConfigError(f"{backward} does not exist; check the path, or leave -backward out")
