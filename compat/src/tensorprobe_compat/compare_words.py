"""`msprobe compare`, in the spelling of 8.2.1 and in that of 26.2.0, as words of tensorprobe.

compare -i compare.json …       ─┐
compare -tp TARGET -gp GOLDEN … ─┴─► tensorprobe compare …
"""

from __future__ import annotations

import argparse

from tensorprobe.errors import ConfigError

__all__ = ["EXAMPLES", "add_flags"]

EXAMPLES = """\
examples:
  msprobe -f pytorch compare -i ./compare.json -o ./output -s
  msprobe -f pytorch compare -i ./compare.json -hl -c
  msprobe -f pytorch compare -i ./compare.json -dm data_mapping.yaml
  msprobe -f pytorch compare -i ./compare.json -da
  msprobe compare -tp ./npu_dump/step0 -gp ./bench_dump/step0 -o ./output --xlsx

A compare.json names a dump.json of each run, or a step folder with many ranks:
  {"npu_path": "./npu_dump/step0", "bench_path": "./bench_dump/step0"}
"stack_path" names a stack.json, "is_print_compare_log": false prints no line per call; debug.json
files, of single values, are compared in the same way. With -tp and -gp the table is a csv unless
--xlsx is given, and no line per call is printed unless -tensor_log is.

Exit code 0: compared, whether or not values differ. 2: an input cannot be read, or something of it
is missing.
"""

# What would change the result, and is not here: why.
_REFUSED = {
    "cell_mapping": "-cm is for MindSpore; give -dm with a YAML file of pairs",
    "api_mapping": "-am is for MindSpore; give -dm with a YAML file of pairs",
    "rank": "--rank is for MindSpore's kernels; give the folder of that rank as -tp and -gp",
    "step": "--step is for MindSpore's kernels; give the folder of that step as -tp and -gp",
    "consistent_check": "--consistent_check is not here; name the pairs in a YAML file, -dm",
    "backend": "--backend belongs to --consistent_check, which is not here",
    "config": "--config, which changes tensors before they are compared, is not here",
}
# Flags of comparisons of kernels and of frameworks, whose first letters mean something else.
_FOR_KERNELS = ("fr", "cfr", "ofs")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both spellings."""
    add = parser.add_argument
    add("-i", "--input_path", help="a compare.json; or -tp and -gp")
    add("-tp", "--target_path", help="the run under test: a dump.json or a step folder")
    add("-gp", "--golden_path", help="the run that is trusted")
    output = "folder of the results (./output)"
    add("-o", "--output_path", nargs="?", default="./output", const="./output", help=output)
    add("-s", "--stack_mode", action="store_true", help="show stacks, if stack_path is given")
    add("-c", "--compare_only", action="store_true", help="do not say where to look first")
    add("-f", "-fm", "--fuzzy_match", action="store_true", help="call numbers may differ")
    add("-hl", "--highlight", action="store_true", help="mark suspicious rows red and yellow")
    add("-dm", "--data_mapping", help="a YAML file with names of values and of their partners")
    add("-da", "--diff_analyze", action="store_true", help="only find the first that differs")
    add("--xlsx", action="store_true", help="with -tp and -gp: write an xlsx, not a csv")
    line = "with -tp and -gp: print a line for every call"
    add("-tensor_log", "--is_print_compare_log", action="store_true", help=line)
    add("-m", "--mode", default="auto", help="auto is the only one here")
    hidden = argparse.SUPPRESS
    add("-lm", "--layer_mapping", nargs="?", const="", help=hidden)
    add("-cm", "--cell_mapping", nargs="?", const="", help=hidden)
    add("-am", "--api_mapping", nargs="?", const="", help=hidden)
    for name in ("--rank", "--step", "--backend", "--config"):
        add(name, help=hidden)
    for name in _FOR_KERNELS:
        add(f"-{name}", nargs="?", const="", help=hidden)
    add("--consistent_check", action="store_true", help=hidden)
    parser.set_defaults(translate=_translate)


def _translate(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    _refuse_strangers(arguments)
    words = ["compare", f"--output={arguments.output_path}"]
    if arguments.layer_mapping is not None:
        notices.append("-lm has no effect with PyTorch; name pairs in a YAML file, -dm")
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
    if arguments.input_path is not None:
        return [*words, "--", arguments.input_path]
    if not arguments.diff_analyze:
        words.append("--format=xlsx" if arguments.xlsx else "--format=csv")
    if arguments.is_print_compare_log:
        words.append("--log")
    return [*words, "--", arguments.target_path, arguments.golden_path]


def _refuse_strangers(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done, and inputs that do not belong together."""
    for name, reason in _REFUSED.items():
        if getattr(arguments, name) not in (None, False):
            raise ConfigError(f"msprobe compare: {reason}")
    for name in _FOR_KERNELS:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"msprobe compare: -{name} is not for dumps of PyTorch; leave it out")
    if arguments.mode != "auto":
        raise ConfigError(
            f"msprobe compare: -m {arguments.mode} is not here; only dumps of PyTorch are "
            "compared, without -m"
        )
    both = (arguments.target_path, arguments.golden_path)
    if (arguments.input_path is None) == (both == (None, None)) or both.count(None) == 1:
        raise ConfigError("msprobe compare: give -i with a compare.json, or both -tp and -gp")
