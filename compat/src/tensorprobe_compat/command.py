"""The command `msprobe`: its arguments in, one command of tensorprobe out.

    -f pytorch COMMAND …  (8.2.1) ─┐
    COMMAND …            (26.2.0) ─┴─► parser ─► translate: words of tensorprobe, and notices

Exit codes are those of tensorprobe: see tensorprobe.ending.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from tensorprobe.cli import main as tensorprobe
from tensorprobe.ending import ended
from tensorprobe.errors import ConfigError
from tensorprobe.system.clean_text import one_line
from tensorprobe_compat import __version__, compare_words, other_words, precheck_words
from tensorprobe_compat.parse_shell import run_shell

__all__ = ["main", "translate"]

# What stands for the prompt among the words of tensorprobe, which has no such command.
_SHELL = ["parse"]

Translate = Callable[[argparse.Namespace, list[str]], list[str]]

# What the older command also had: what does its job here.
_ELSEWHERE = {
    "api_precision_compare": "`tensorprobe precheck` judges each call against the CPU by itself",
    "code_mapping": "`tensorprobe show DUMP CALL` shows where a call was made",
    "config_check": "`tensorprobe doctor` says what a machine has to work with",
    "data2db": "`tensorprobe show DUMP --json` gives every call of a dump to other programs",
    "graph": "`tensorprobe show DUMP` shows the calls of a run as a tree under their modules",
    "graph_visualize": "`tensorprobe show DUMP` shows the calls of a run as a tree",
    "install_deps": "`tensorprobe doctor` says what is missing, and pip installs it",
    "offline_dump": "`tensorprobe run SCRIPT` captures a model that PyTorch runs",
    "op_generate": "`tensorprobe precheck --save-errors DIR` writes a script for each failing call",
}

_EXAMPLES = """\
examples:
  msprobe -f pytorch compare -i ./compare.json -o ./output -s
  msprobe -f pytorch compare -i ./compare.json -da
  msprobe -f pytorch merge_result -i ./input_dir -o ./output_dir -config ./config.yaml
  msprobe -f pytorch run_ut -api_info ./dump_path/step0/rank0/dump.json
  msprobe -f pytorch run_overflow_check -api_info ./dump_path/step0/rank0/dump.json
  msprobe -f pytorch parse
  msprobe compare -tp ./npu_dump/step0 -gp ./bench_dump/step0 -o ./output

Everything is done by tensorprobe, whose own commands can do more: see tensorprobe --help.
"""


_PARSE_EXAMPLES = """\
examples, at the prompt:
  pt -n ./Functional_conv2d_0_forward_output.npy    one tensor
  cn -m ./mine.npy -g ./golden.npy                  how far one is from another
  pk -f ./api_stack_dump.pkl -n Functional_conv2d_0 the calls whose names begin so
  vc -m ./npu_dump/step0 -g ./gpu_dump/step0        two dumps
  quit
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of msprobe by tensorprobe and return the exit code."""
    words: list[str] = []
    # Its own arguments first: what is wrong with them is told as what is wrong with ours.
    own = sys.argv[1:] if argv is None else list(argv)
    code = ended(lambda _: translate(own, words))
    if code or not words:
        return code
    return run_shell() if words == _SHELL else tensorprobe(words)


def translate(argv: list[str], words: list[str]) -> int:
    """Translate a command of msprobe.

    Args:
        argv: its words.
        words: gets those of tensorprobe.

    Returns:
        The exit code if there are none, after a line that says why; else 0.

    Raises:
        TensorprobeError: its arguments do not belong together, or their file cannot be read.
        SystemExit: argparse has said what is wrong with them, or was asked for help.
    """
    parser, commands = _parser()
    if (stranger := _unknown_command(argv, commands)) is not None:
        near = difflib.get_close_matches(stranger, commands, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return _refuse(f"there is no command {stranger!r}; {hint}msprobe --help lists them")
    if argv in ([], ["-f", "pytorch"], ["--framework", "pytorch"]):
        parser.print_help()
        return 0
    # What follows a command that is not here need not be understood.
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.framework != "pytorch":
        return _refuse(f"{arguments.framework} dumps are not read here; only pytorch is known")
    if arguments.command in _ELSEWHERE:
        return _refuse(f"{arguments.command} is not here; {_ELSEWHERE[arguments.command]}")
    if unknown:
        return _refuse(f"{arguments.command} does not know {' '.join(unknown)}; see --help")
    translate: Translate = arguments.translate
    notices: list[str] = []
    words += translate(arguments, notices)
    for notice in notices:
        _tell(notice)
    return 0


def _parse(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    if arguments.dump_path is not None:
        raise ConfigError(
            "msprobe parse: -d converts files of kernels, which is not here; tensors in .npy and "
            ".pt files are shown by `tensorprobe show FILE`"
        )
    return _SHELL


def _refuse(reason: str) -> int:
    _tell(reason)
    return 2


def _tell(text: str) -> None:
    sys.stderr.write(f"msprobe: {one_line(text)}\n")


def _unknown_command(argv: Sequence[str], commands: Sequence[str]) -> str | None:
    """Return the word that stands where a command should and is none."""
    words = iter(argv)
    for word in words:
        if word in ("-f", "--framework"):
            next(words, None)
        elif not word.startswith("-"):
            return None if word in commands else word
    return None


class _Parser(argparse.ArgumentParser):
    """A parser that shows an argument, which may be the name of a file, and does not obey it."""

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    parser = _Parser(
        prog="msprobe",
        description="The command of msprobe, answered by tensorprobe.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f", "--framework", choices=("pytorch", "mindspore"), default="pytorch", help="pytorch"
    )
    version = f"msprobe of tensorprobe-compat {__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )

    def add(name: str, text: str, examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    compare_words.add_flags(add("compare", "compare the dumps of two runs", compare_words.EXAMPLES))
    merge = add("merge_result", "merge the ranks' results of compare", other_words.MERGE_EXAMPLES)
    other_words.add_merge_flags(merge)
    for name, several in (("run_ut", "multi_run_ut"), ("acc_check", "multi_acc_check")):
        alone = add(name, "check each recorded call by itself", precheck_words.EXAMPLES)
        with_processes = add(several, "the same by several processes", precheck_words.EXAMPLES)
        for precheck in (alone, with_processes):
            precheck_words.add_flags(precheck)
            precheck_words.add_dump_flags(precheck)
        precheck_words.add_number_of_processes(with_processes)
    overflow = add("run_overflow_check", "judge recorded overflows", other_words.OVERFLOW_EXAMPLES)
    other_words.add_overflow_dump_flag(overflow)
    other_words.add_overflow_flags(overflow)
    for name in ("overflow_check", "nan_analyze"):
        other_words.add_step_flags(
            add(name, "find the first overflow over all ranks", other_words.STEP_EXAMPLES)
        )
    parse = add("parse", "a prompt to look into files", _PARSE_EXAMPLES)
    for flags in (("-d", "--dump_path"), ("-t", "--type"), ("-o", "--output_path")):
        parse.add_argument(*flags, help=argparse.SUPPRESS)
    parse.set_defaults(translate=_parse)
    for name in _ELSEWHERE:
        commands.add_parser(name, add_help=False)
    return parser, list(commands.choices)
