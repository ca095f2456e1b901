"""`run_ut.py` and `run_overflow_check.py`: their arguments in, one command of tensorprobe out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tensorprobe.cli import main as tensorprobe
from tensorprobe.ending import Manner, ended
from tensorprobe.system.standard_streams import complain
from tensorprobe_compat import other_words, precheck_words

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


def run_ut(argv: Sequence[str] | None = None, *, error_data_path: str) -> int:
    """Check each recorded call by tensorprobe and return the exit code.

    Args:
        argv: the arguments; by default those of the process.
        error_data_path: where failing calls are kept, if that is asked for.
    """
    parser = _parser("run_ut.py", "Check each recorded call by itself.", _RUN_UT_EXAMPLES)
    precheck_words.add_flags(parser, error_data=error_data_path)
    return _run(parser, argv)


def run_overflow_check(argv: Sequence[str] | None = None) -> int:
    """Judge each recorded overflow by tensorprobe and return the exit code."""
    parser = _parser("run_overflow_check.py", "Judge recorded overflows.", _OVERFLOW_EXAMPLES)
    other_words.add_overflow_flags(parser)
    return _run(parser, argv)


def _parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # `-forward` and `-f` are two.
        allow_abbrev=False,
    )
    parser.add_argument(
        "-forward",
        "--forward_input_file",
        dest="dump",
        required=True,
        metavar="FILE",
        help="a forward_info_{pid}.json; stack_info_{pid}.json is found beside it",
    )
    return parser


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    parser.add_argument(
        "-backward",
        "--backward_input_file",
        dest="backward",
        metavar="FILE",
        help="its backward_info_{pid}.json, which is found beside it without this, too",
    )
    words: list[str] = []

    def arrange(_: Manner) -> int:
        arguments = parser.parse_args(argv)
        notices: list[str] = []
        words.extend(arguments.translate(arguments, notices))
        for notice in notices:
            complain(notice)
        return 0

    # Its own arguments first: what is wrong with them is told as what is wrong with ours.
    return ended(arrange) or tensorprobe(words)
