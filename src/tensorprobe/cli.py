"""The command line: arguments to one call. Heavy imports happen inside the commands.

Exit codes: see ending.py.

Past 500 lines: it is a flat list of options and examples, which is best in one place.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from tensorprobe._version import __version__
from tensorprobe.ending import Manner, ended
from tensorprobe.errors import ConfigError
from tensorprobe.system.byte_sizes import parse_bytes
from tensorprobe.system.clean_text import one_line

__all__ = ["main", "run"]

# numpy's library for matrices starts its threads when it is loaded; comparing multiplies none.
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"

_EXAMPLES = """\
examples:
  tensorprobe doctor                                what this machine has to work with
  tensorprobe run train.py --epochs 1               capture a script that was not edited
  tensorprobe precheck dump/                        check each call on its own
  tensorprobe show dump/                            every call of a dump, under its module
  tensorprobe show dump/step0/rank0 'Functional.*'  the calls whose names fit
  tensorprobe show dump/ Functional.linear.0.forward   everything about one call
  tensorprobe show dump/ --json | jq .name          for machines
  tensorprobe overflow dump/                        which overflows are a fault?
  tensorprobe compare dump/ trusted/ -o result      which values differ, and the first that does
  tensorprobe blame dump/ trusted/                  the operation at fault, and how sure that is
  tensorprobe merge result/ --config merge.yaml     all ranks' results in one table

Exit code 0: all is well. 1: a check failed. 2: something could not be read or used; a line says
what and where. 70: a fault of tensorprobe itself; --debug shows where. 130: interrupted.
"""

_SHOW_EXAMPLES = """\
examples:
  tensorprobe show dump/
  tensorprobe show dump/step0/rank1/dump.json relu
  tensorprobe show dump/ 'Module.blocks.*.forward.0'
  tensorprobe show dump/ --rank 1 Functional.linear.0.forward
  tensorprobe show forward_info_2861.json
  tensorprobe show dump/ --json > calls.jsonl
  tensorprobe show npu/linear.pt --against gpu/linear.pt

DUMP is a dump.json, debug.json, forward_info_*.json or ptdbg .pkl, a rank folder, a step folder or
a whole dump path, of tensorprobe, msprobe, api_accuracy_checker or ptdbg_ascend; or one .npy or .pt
file with a tensor.

With --json every line is one object; "kind" is part, call or gap; numbers that are not finite are
the texts "NaN", "Infinity" and "-Infinity".
"""

_OVERFLOW_EXAMPLES = """\
examples:
  tensorprobe run --task overflow_check train.py     record the calls that overflow
  tensorprobe overflow dump_path/                    which of them are a fault?
  tensorprobe overflow dump_path/ --device cuda:0    does it happen again there?
  tensorprobe overflow dump_path/step3 -o results
  tensorprobe overflow forward_info_2861.json

Each overflow is made again on the CPU, in its own dtype and one precision up. If the CPU overflows
too, the numbers explain it and it is normal; if not, the operation is at fault and it is abnormal.
The last lines say which call, over all ranks, was the first to make a value that is not finite; for
that a dump of statistics is enough. Everything is in overflow_check_result_TIME.csv.

Exit code 0: no overflow is abnormal. 1: one is. 2: something could not be read or used.
"""

_COMPARE_EXAMPLES = """\
examples:
  tensorprobe compare dump/ trusted/                the tables go to ./output
  tensorprobe compare dump/step0 trusted/step0 -o result --highlight --first-diff
  tensorprobe compare a/dump.json b/dump.json --format csv,json --no-stack
  tensorprobe compare a/dump.json b/dump.json --fuzzy
  tensorprobe compare a/dump.json b/dump.json --mapping names.yaml
  tensorprobe compare compare.json                  a file that names both, of the older tools

CANDIDATE and REFERENCE are dumps of tensorprobe, msprobe, api_accuracy_checker or ptdbg_ascend: a
file, a rank, a step or a whole dump path. What both hold decides what is compared: real data,
checksums or statistics. Ranks are paired by their numbers.

Exit code 0: compared, whether or not values differ; the summary and the tables say so. 2: an input
cannot be read, or something of it is missing; what can be compared is.
"""

_BLAME_EXAMPLES = """\
examples:
  tensorprobe blame dump_npu/ dump_gpu/
  tensorprobe blame dump_npu/step0/rank0 dump_gpu/step0/rank0 --json
  tensorprobe blame dump_npu/ dump_gpu/ --repro proof/
                                                    with a proof: python proof/repro.py npu
  tensorprobe blame dump_npu/ dump_gpu/ --top 10
  tensorprobe blame compare.json                    a file that names both, of the older tools

The culprit is the first call, in the order of the run, whose result is off by more than rounding
and its inputs explain. With real data (task tensor) calls are replayed in float64; with statistics
or checksums the best answer that they allow is given. --json prints one object, {"culprit": name
or null, ...}; docs/blame.md describes it.

Exit code 0 also when there is a culprit: that is a result, not an error. 2: something could not be
read or used, or the proof that was asked for cannot be written.
"""

_MERGE_EXAMPLES = """\
examples:
  tensorprobe compare dump/step0 trusted/step0 -o result     a table per rank
  tensorprobe merge result --config merge.yaml               one of all ranks, in ./output
  tensorprobe merge result --config merge.yaml -o merged

merge.yaml:
  api:                                # needed: how the names of the rows begin that are wanted
  - Distributed.all_reduce            # every call; also Distributed, or Distributed.all_reduce.0
  - Distributed.all_gather.0.forward
  compare_index:                      # the metrics; left out, all of them
  - Max diff
  - MeanRelativeErr

Statistics have: Max diff, Min diff, Mean diff, L2norm diff, MaxRelativeErr, MinRelativeErr,
MeanRelativeErr, NormRelativeErr, Requires_grad Consistent. Real data have: Cosine, EucDist,
MaxAbsErr, MaxRelativeErr, One Thousandth Err Ratio, Five Thousandths Err Ratio,
Requires_grad Consistent.

RESULTS_DIR holds compare_result_rank{N}_{time}.xlsx or .csv, of tensorprobe or msprobe; of each
rank the newest counts. OUT/multi_ranks_compare_merge_{time}.xlsx has a sheet per metric and in it
a column per rank.

Exit code 0: merged. 2: the configuration cannot be used, or a result cannot be read; the others are
merged.
"""

_RUN_EXAMPLES = """\
examples:
  tensorprobe run train.py --lr 0.1
  tensorprobe run --level mix --step 0,10-12 -o ./dump train.py
  tensorprobe run --task tensor --list relu --list softmax train.py
  tensorprobe run --config config.json -m package.train --epochs 1
  tensorprobe run --rank 0,4-6 torchrun --nproc-per-node 8 train.py
  mpirun -n 2 tensorprobe run train.py
  tensorprobe run --online -o results train.py --lr 0.1
  tensorprobe run --online --step 0,10 --every 4 --jobs 2 torchrun --nproc-per-node 8 train.py

Options of tensorprobe stand before the script, everything after it is the script's. They win over
the configuration file. A step ends with the step of the optimizer (of several, the one that steps
first), whose own calls are left out; everything before the first one is step 0. Only the processes
that are started by the command are captured, not those that the script spawns itself.

With --online nothing is captured: each ATen operator runs once more on the CPU, on the same inputs,
and what computes something else is told as Failed; -o is the folder of the results (./online).

The exit code, the output and the errors are those of the script. A last line on stderr says where
the dump is, or the table.
"""


_PRECHECK_EXAMPLES = """\
examples:
  tensorprobe precheck dump/
  tensorprobe precheck dump/step0/rank0 -o results --device cuda:0 --device cuda:1 --jobs 4
  tensorprobe precheck dump/ --data random --dedupe --include 'Functional.*' --exclude dropout
  tensorprobe precheck dump/ --save-errors errors --timeout 60
  tensorprobe precheck dump/ --resume results/accuracy_checking_result_20260102030405.csv
  tensorprobe precheck forward_info_2861.json --import my_fused_operators

Every recorded call is made again, on the device in its recorded dtype and on the CPU one precision
up, forward and backward, and judged. Two files are written row by row:
accuracy_checking_result_{time}.csv has a row per call, accuracy_checking_details_{time}.csv one per
output. A resumed run needs the dump, the options and the device of the first.

Exit code 0: no call failed. 1: some did. 2: something could not be read or used.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    return ended(partial(_run_command, argv))


def run() -> int:
    """Run one command as a process of its own, which ends after it."""
    code = main()
    # Nobody needs to search what is alive for cycles now: that takes as long as a small command.
    gc.freeze()
    return code


def _run_command(argv: Sequence[str] | None, manner: Manner) -> int:
    arguments = _parser().parse_args(argv)
    manner.debug = manner.debug or arguments.debug
    manner.stops_unread = arguments.run is _show
    code: int = arguments.run(arguments)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that shows an argument, which may be the name of a file, and does not obey it."""

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def _parser() -> argparse.ArgumentParser:
    formatter = _help_formatter()
    parser: argparse.ArgumentParser = _Parser(
        prog="tensorprobe",
        description="Find the operation that makes two PyTorch runs disagree.",
        epilog=_EXAMPLES,
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"tensorprobe {__version__}")
    debug_help = "show the traceback of an error"
    parser.add_argument("--debug", action="store_true", help=debug_help)
    # Wanted after the command too; there it must not undo the one before.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug_help)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser(
        "show",
        parents=[common],
        help="show the calls of a dump, or everything about one",
        description="Show the calls of a dump as a tree under their modules, with shapes, dtypes "
        "and statistics; or, given one call's whole name, everything about it.",
        epilog=_SHOW_EXAMPLES,
        formatter_class=formatter,
    )
    show.add_argument("dump", metavar="DUMP", help="a dump's file or folder, of any tool")
    show.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        help="part of a call's name, a pattern with * or ?, or one whole name",
    )
    show.add_argument("--step", type=int, metavar="N", help="only this step")
    show.add_argument("--rank", type=int, metavar="N", help="only this rank")
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.add_argument(
        "--against",
        metavar="FILE",
        help="of a tensor file, which takes no pattern, step or rank: how far it is from this",
    )
    show.set_defaults(run=_show)

    _add_compare(commands, common, formatter)

    blame = commands.add_parser(
        "blame",
        parents=[common],
        help="name the operation that makes two runs disagree",
        description="Name the operation at fault, not the ones that suffer from it: its place in "
        "the code, how far above rounding its error is, what kind it looks like, how sure that is.",
        epilog=_BLAME_EXAMPLES,
        formatter_class=formatter,
    )
    blame.add_argument(
        "candidate", metavar="CANDIDATE", help="the run under test, or a compare.json"
    )
    blame.add_argument(
        "reference", metavar="REFERENCE", nargs="?", help="the dump of the run to trust"
    )
    blame.add_argument("--json", action="store_true", help="one JSON object")
    blame.add_argument(
        "--repro",
        metavar="DIR",
        help="write a script that shows the fault with torch alone, where a replay can show it; "
        "the line `proof` names it, or says why there is none",
    )
    blame.add_argument("--top", type=int, default=5, metavar="N", help="how many suspects (5)")
    _add_limits(blame, timeout=60.0)
    blame.set_defaults(run=_blame)

    run = commands.add_parser(
        "run",
        parents=[common],
        help="capture a script that was not edited",
        description="Run a training script, or torchrun with one, and capture it into a dump.",
        epilog=_RUN_EXAMPLES,
        formatter_class=formatter,
    )
    run.add_argument("--config", metavar="FILE", help="a config.json or YAML file")
    run.add_argument("--task", help="statistics (default), tensor, overflow_check or structure")
    run.add_argument("--level", help="L0 modules, L1 API calls (default), mix both, L2 kernels")
    run.add_argument("-o", "--dump-path", metavar="DIR", help="where the dump goes (./dump_path)")
    run.add_argument("--step", metavar="N,N-N", action="append", help="only these steps")
    run.add_argument("--rank", metavar="N,N-N", action="append", help="only these ranks")
    run.add_argument(
        "--list", metavar="NAME", action="append", help="only calls whose name holds this"
    )
    run.add_argument("--online", action="store_true", help="check each operator against the CPU")
    online = run.add_argument_group("with --online")
    online.add_argument(
        "--mode", help="whose data are kept: auto those that miss (default), all, list or off"
    )
    online.add_argument("--ops", metavar="NAME,NAME", help="operators for --mode list")
    online.add_argument("--tag", help="part of the folder's name")
    online.add_argument("--jobs", type=int, metavar="N", help="threads in the background (0)")
    online.add_argument("--precision", help="of the reference: higher (default) or same")
    online.add_argument("--every", type=int, metavar="N", help="one of N calls of each operator")
    online.add_argument("--max-bytes", metavar="SIZE", help="leave out calls with larger tensors")
    online.add_argument(
        "--include", metavar="NAME", action="append", help="only operators that hold this, or fit"
    )
    online.add_argument(
        "--exclude", metavar="NAME", action="append", help="not operators that hold this, or fit"
    )
    online.add_argument("--memory-limit", metavar="SIZE", help="what may wait for --jobs (2GiB)")
    online.add_argument("--disk-limit", metavar="SIZE", help="data that are kept at most (20GiB)")
    online.add_argument(
        "--statistics",
        action="store_true",
        default=None,
        help="maximum, minimum and mean of outputs that pass, too",
    )
    run.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module, with the arguments behind it, as python -m does",
    )
    run.add_argument(
        "command",
        metavar="COMMAND",
        nargs=argparse.REMAINDER,
        help="train.py …, python -m package.train … or torchrun … train.py …",
    )
    run.set_defaults(run=_run)

    _add_precheck(commands, common, formatter)
    _add_overflow(commands, common, formatter)
    _add_merge(commands, common, formatter)

    doctor = commands.add_parser(
        "doctor",
        parents=[common],
        help="say what tensorprobe has to work with here",
        description="Print versions, devices, and whether the compiled kernel, Triton, chromium "
        "and ray are there.",
        epilog="examples:\n  tensorprobe doctor\n  tensorprobe doctor --json\n",
        formatter_class=formatter,
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_compare(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    common: argparse.ArgumentParser,
    formatter: type[argparse.HelpFormatter],
) -> None:
    compare = commands.add_parser(
        "compare",
        parents=[common],
        help="compare the dumps of two runs",
        description="Compare the dump of a run under test with that of a trusted run, value by "
        "value, and write tables of what differs.",
        epilog=_COMPARE_EXAMPLES,
        formatter_class=formatter,
    )
    add = compare.add_argument
    add("candidate", metavar="CANDIDATE", help="the run under test, or a compare.json")
    add("reference", metavar="REFERENCE", nargs="?", help="the run that is trusted")
    add("-o", "--output", metavar="OUT", default="./output", help="folder of the results (output)")
    add("--fuzzy", action="store_true", help="match calls that differ in their number alone")
    add("--mapping", metavar="MAP.yaml", help="names of values and of their partners, for one rank")
    add("--highlight", action="store_true", help="mark suspicious rows red and yellow")
    add("--no-advice", action="store_true", help="do not say or write where to look first")
    add(
        "--blame",
        action=argparse.BooleanOptionalAction,
        help="replay all that may be at fault, however long it takes; or name nobody",
    )
    add("--first-diff", action="store_true", help="name and write the first that differs, as JSON")
    stack = compare.add_mutually_exclusive_group()
    stack.add_argument("--no-stack", action="store_true", help="leave the call stacks out")
    stack.add_argument(
        "--stack",
        action="store_true",
        help="show call stacks also if compare.json names their file",
    )
    add("--format", metavar="xlsx,csv,json", default="xlsx", help="what to write (xlsx)")
    add("--log", action="store_true", help="print a line for every call")
    add("--jobs", metavar="N", type=int, help="threads (one per core)")
    compare.set_defaults(run=_compare)


def _add_precheck(commands: Any, common: argparse.ArgumentParser, formatter: Any) -> None:
    precheck = commands.add_parser(
        "precheck",
        parents=[common],
        help="check each recorded call against the CPU, without a second run",
        description="Make every recorded call again, on the device and in higher precision on the "
        "CPU, and say which ones compute something else. What the older tools' rule (cosine, 双千, "
        "双万) says stands beside the verdict.",
        epilog=_PRECHECK_EXAMPLES,
        formatter_class=formatter,
    )
    add = precheck.add_argument
    add("dump", metavar="DUMP", help="a dump's file or folder, of any tool")
    add("-o", "--output", metavar="DIR", help="where the result files go (.)")
    add(
        "--device",
        metavar="NAME",
        action="append",
        help="the device under test, cuda:0 or 0; again for several (the first one, or the CPU)",
    )
    add(
        "--data",
        choices=("real", "random"),
        help="recorded tensors, or random ones in their range (real where there are some)",
    )
    add("--save-errors", metavar="DIR", help="keep failing calls there, each with a script")
    add("--resume", metavar="FILE", help="go on where the run of this result file stopped")
    add("--jobs", type=int, default=1, metavar="N", help="worker processes (one per device)")
    add("--include", metavar="NAME", action="append", help="only calls whose name fits")
    add("--exclude", metavar="NAME", action="append", help="no call whose name fits")
    add("--dedupe", action="store_true", help="check calls once that differ in values alone")
    add("--seed", type=int, default=1234, metavar="N", help="of all random numbers (1234)")
    _add_limits(precheck, timeout=300.0)
    add(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        help="import this first: it registers operators of your own",
    )
    add("--step", type=int, metavar="N", help="only this step")
    add("--rank", type=int, metavar="N", help="only this rank")
    add(
        "--backward",
        metavar="FILE",
        help="the backward file of a forward_info_*.json, if it is not the one beside it",
    )
    add(
        "--jit-compile",
        action=argparse.BooleanOptionalAction,
        help="the NPU compiler's switch, as it was in the run",
    )
    precheck.set_defaults(run=_precheck)


def _add_overflow(commands: Any, common: argparse.ArgumentParser, formatter: Any) -> None:
    overflow = commands.add_parser(
        "overflow",
        parents=[common],
        help="tell overflows that the numbers explain from faulty ones",
        description="Make every recorded call that overflowed again on the CPU, say whether the "
        "overflow is normal or abnormal, and find the first one over all ranks.",
        epilog=_OVERFLOW_EXAMPLES,
        formatter_class=formatter,
    )
    add = overflow.add_argument
    add("dump", metavar="DUMP", help="a dump's file or folder, of any tool")
    add("-o", "--output", metavar="DIR", default=".", help="where the csv goes (.)")
    add(
        "--origins-json",
        action="store_true",
        help="also write anomaly_analyze_TIME.json, as nan_analyze of msprobe does",
    )
    add("--device", metavar="NAME", help="make each call once more on this device, cuda:0")
    add(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        help="import this first: it registers operators of your own",
    )
    add("--step", type=int, metavar="N", help="only this step")
    add("--rank", type=int, metavar="N", help="only this rank")
    _add_limits(overflow, timeout=300.0)
    overflow.set_defaults(run=_overflow)


def _add_merge(commands: Any, common: argparse.ArgumentParser, formatter: Any) -> None:
    merge = commands.add_parser(
        "merge",
        parents=[common],
        help="put what the results of many ranks say of some calls into one table",
        description="Merge the results of comparing many ranks: of the calls that are wanted, such "
        "as collectives, a sheet per metric with a column per rank.",
        epilog=_MERGE_EXAMPLES,
        formatter_class=formatter,
    )
    add = merge.add_argument
    add("results", metavar="RESULTS_DIR", help="the folder with the results of all ranks")
    add("--config", metavar="FILE", required=True, help="a YAML file: which calls and metrics")
    add("-o", "--output", metavar="OUT", default="./output", help="folder of the table (output)")
    merge.set_defaults(run=_merge)


def _help_formatter() -> type[argparse.HelpFormatter]:
    # Colours are for eyes: elsewhere they cost a tenth of a second and a package.
    if not sys.stdout.isatty():
        return argparse.RawDescriptionHelpFormatter
    try:
        import rich  # noqa: F401 - rich_argparse finds out too late that it is missing
        from rich_argparse import RawDescriptionRichHelpFormatter
    except ImportError:
        return argparse.RawDescriptionHelpFormatter
    return RawDescriptionRichHelpFormatter


def _show(arguments: argparse.Namespace) -> int:
    from tensorprobe.show.command import show_dump

    return show_dump(
        arguments.dump,
        arguments.pattern,
        step=arguments.step,
        rank=arguments.rank,
        as_json=arguments.json,
        against=arguments.against,
    )


@contextmanager
def _quick_imports() -> Iterator[None]:
    """Import without what takes a sixth of the time: the collector, and threads nobody needs."""
    threads, has_collector = os.environ.get(_BLAS_THREADS), gc.isenabled()
    os.environ[_BLAS_THREADS] = threads or "1"
    gc.disable()
    try:
        yield
    finally:
        if has_collector:
            gc.enable()
        if threads is None:
            del os.environ[_BLAS_THREADS]


def _compare(arguments: argparse.Namespace) -> int:
    with _quick_imports():
        from tensorprobe.blame.after_compare import judge_for
        from tensorprobe.compare.command import compare_dumps

    jobs = arguments.jobs
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, wanted 1 or more; without it, one thread per core")
    judge = judge_for(
        arguments.candidate,
        arguments.reference,
        advise=not arguments.no_advice,
        first_difference=arguments.first_diff,
        has_mapping=arguments.mapping is not None,
        blame=arguments.blame,
    )
    return compare_dumps(
        arguments.candidate,
        arguments.reference,
        arguments.output,
        fuzzy=arguments.fuzzy,
        mapping=arguments.mapping,
        highlight=arguments.highlight,
        advise=not arguments.no_advice,
        first_difference=arguments.first_diff,
        stack=False if arguments.no_stack else True if arguments.stack else None,
        formats=[name.strip() for name in arguments.format.split(",") if name.strip()],
        jobs=jobs or 0,
        log=arguments.log,
        find_culprit=judge,
    )


def _add_limits(parser: argparse.ArgumentParser, *, timeout: float) -> None:
    """Add the limits of the processes that make recorded calls."""
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout,
        metavar="S",
        help=f"seconds for one call ({timeout:g})",
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="memory of each process that makes calls (equal shares of what there is)",
    )


def _overflow(arguments: argparse.Namespace) -> int:
    from tensorprobe.overflow.command import run_overflow

    return run_overflow(
        arguments.dump,
        output_path=arguments.output,
        origins_json=arguments.origins_json,
        device=arguments.device,
        imports=tuple(arguments.imports or ()),
        step=arguments.step,
        rank=arguments.rank,
        timeout=arguments.timeout,
        memory=arguments.memory,
    )


def _merge(arguments: argparse.Namespace) -> int:
    from tensorprobe.ranks.command import run_merge

    return run_merge(arguments.results, arguments.config, arguments.output)


def _precheck(arguments: argparse.Namespace) -> int:
    from tensorprobe.precheck.command import run_precheck

    return run_precheck(
        arguments.dump,
        output_path=arguments.output,
        devices=arguments.device or (),
        data=arguments.data,
        save_errors=arguments.save_errors,
        resume=arguments.resume,
        jobs=arguments.jobs,
        include=arguments.include or (),
        exclude=arguments.exclude or (),
        dedupe=arguments.dedupe,
        seed=arguments.seed,
        timeout=arguments.timeout,
        memory=arguments.memory,
        imports=arguments.imports or (),
        step=arguments.step,
        rank=arguments.rank,
        jit_compile=arguments.jit_compile,
        backward=arguments.backward,
    )


def _blame(arguments: argparse.Namespace) -> int:
    from tensorprobe.blame.command import blame_dumps

    return blame_dumps(
        arguments.candidate,
        arguments.reference,
        top=arguments.top,
        timeout=arguments.timeout,
        memory=arguments.memory,
        repro=arguments.repro,
        as_json=arguments.json,
    )


_SIZES = ("max_bytes", "memory_limit", "disk_limit")
_ONLINE = (
    "mode",
    "tag",
    "jobs",
    "precision",
    "every",
    "include",
    "exclude",
    "statistics",
    *_SIZES,
)
_CAPTURE = ("config", "task", "level", "rank", "list")


def _run(arguments: argparse.Namespace) -> NoReturn:
    given = vars(arguments)
    strangers = _CAPTURE if arguments.online else (*_ONLINE, "ops")
    for name in strangers:
        if given[name] is not None:
            option = _option(name)
            why = "goes with capturing, not with" if arguments.online else "goes with"
            raise ConfigError(f"{option} {why} --online; see tensorprobe run --help")
    if arguments.online:
        _run_online(arguments)
    from tensorprobe.capture.launch import launch

    options = {
        "path": arguments.config,
        "task": arguments.task,
        "dump_path": arguments.dump_path,
        "level": arguments.level,
        "step": _numbers(arguments.step),
        "rank": _numbers(arguments.rank),
        "list": arguments.list,
    }
    launch(_command(arguments), {key: v for key, v in options.items() if v is not None})


def _run_online(arguments: argparse.Namespace) -> NoReturn:
    from tensorprobe.online.script import launch_checked

    options = {name: vars(arguments)[name] for name in _ONLINE}
    for name in _SIZES:
        if options[name] is not None:
            options[name] = parse_bytes(options[name], _option(name))
    options["path"] = arguments.dump_path
    options["ops"] = None if arguments.ops is None else arguments.ops.split(",")
    if arguments.step is not None:
        from tensorprobe.config import load_config

        options["steps"] = load_config(step=_numbers(arguments.step)).step
    launch_checked(_command(arguments), {key: v for key, v in options.items() if v is not None})


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _command(arguments: argparse.Namespace) -> list[str]:
    command: list[str] = arguments.command
    return command if arguments.module is None else ["-m", *arguments.module]


def _numbers(words: list[str] | None) -> list[str] | None:
    return None if words is None else [part for word in words for part in word.split(",")]


def _doctor(arguments: argparse.Namespace) -> int:
    from tensorprobe.doctor import examine
    from tensorprobe.report.findings import print_findings

    print_findings(examine(), as_json=arguments.json)
    return 0
