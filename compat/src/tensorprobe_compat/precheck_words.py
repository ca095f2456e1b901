"""`msprobe run_ut` and its like, as words of `tensorprobe precheck`.

run_ut, multi_run_ut (8.2.1), acc_check, multi_acc_check (26.2.0) ─┐
run_ut.py of api_accuracy_checker: -forward for -api_info ─────────┴─► tensorprobe precheck …
"""

from __future__ import annotations

import argparse
import glob
from collections.abc import Sequence

from tensorprobe.errors import ConfigError

__all__ = ["EXAMPLES", "add_dump_flags", "add_flags", "add_number_of_processes", "translate"]

EXAMPLES = """\
examples:
  msprobe -f pytorch run_ut -api_info ./dump_path/step0/rank0/dump.json
  msprobe -f pytorch run_ut -api_info ./dump.json -o ./results -d 0 1 -save_error_data
  msprobe -f pytorch run_ut -api_info ./dump.json -csv_path ./accuracy_checking_result_TIME.csv
  msprobe -f pytorch multi_run_ut -api_info ./dump.json -n 4
  msprobe acc_check -api_info ./dump.json

Exit code 0: no call failed. 1: some did. 2: something could not be read or used.
"""

_ERROR_DATA = "./ut_error_data"


def add_dump_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that the commands of msprobe alone have."""
    add = parser.add_argument
    add("-api_info", "--api_info_file", dest="dump", required=True, help="a dump.json")
    config = "a config.json with white_list and black_list"
    add("-config", "--config_path", default="", help=config)


def add_flags(parser: argparse.ArgumentParser, *, error_data: str = _ERROR_DATA) -> None:
    """Add the flags of all commands.

    Args:
        parser: of the command.
        error_data: where failing calls are kept, if that is asked for.
    """
    add = parser.add_argument
    add("-o", "--out_path", default="", help="where the result files go (.)")
    add("-save_error_data", action="store_true", help=f"keep failing calls in {error_data}")
    add("-j", "--jit_compile", action="store_true", help="turn the NPU's compiler on")
    add("-d", "--device", nargs="+", type=_device, default=[], help="numbers of the devices")
    resume = "go on where the run of this result file stopped"
    add("-csv_path", "--result_csv_path", default="", help=resume)
    add("-f", "--filter_api", action="store_true", help="check calls of one kind once")
    parser.set_defaults(
        translate=translate, num_splits=1, error_data=error_data, config_path="", backward=None
    )


def add_number_of_processes(parser: argparse.ArgumentParser) -> None:
    """Add the flag that only those with several processes have."""
    parser.add_argument(
        "-n", "--num_splits", type=_processes, default=8, help="processes, 1 to 64 (8)"
    )


def translate(arguments: argparse.Namespace, notices: list[str]) -> list[str]:
    """Return the words of tensorprobe; what of the arguments has no effect is added to notices."""
    words = ["precheck", f"--jobs={arguments.num_splits}"]
    is_resumed = bool(arguments.result_csv_path)
    if arguments.out_path and is_resumed:
        notices.append("-o has no effect with -csv_path: the run goes on in the files that it has")
    elif arguments.out_path:
        words.append(f"--output={arguments.out_path}")
    error_data = arguments.error_data
    if arguments.config_path:
        from tensorprobe import load_config

        config = load_config(arguments.config_path, task="run_ut")
        # The whole name of a function, where tensorprobe looks for parts of names.
        words += [f"--include=*.{glob.escape(name)}.*" for name in config.white_list]
        words += [f"--exclude=*.{glob.escape(name)}.*" for name in config.black_list]
        error_data = str(config.error_data_path or error_data)
    if arguments.save_error_data:
        words.append(f"--save-errors={error_data}")
    if arguments.jit_compile:
        words.append("--jit-compile")
        notices.append("-j, the NPU's compiler, has no effect on other devices")
    elif not is_resumed:
        # A run that is resumed goes on with the switch that it had.
        words.append("--no-jit-compile")
    words += [f"--device={number}" for number in _different(arguments.device)]
    if is_resumed:
        words.append(f"--resume={arguments.result_csv_path}")
    if arguments.filter_api:
        words.append("--dedupe")
    if arguments.backward is not None:
        words.append(f"--backward={arguments.backward}")
    return [*words, "--", arguments.dump]


def _different(devices: Sequence[int]) -> Sequence[int]:
    if len(set(devices)) < len(devices):
        shown = " ".join(map(str, devices))
        raise ConfigError(f"-d {shown} names a device twice; name each once")
    return devices


def _device(text: str) -> int:
    return _number(text, "the number of a device, from 0 on", first=0, last=None)


def _processes(text: str) -> int:
    return _number(text, "a number from 1 to 64", first=1, last=64)


def _number(text: str, wanted: str, *, first: int, last: int | None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = first - 1
    if number < first or (last is not None and number > last):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return number
