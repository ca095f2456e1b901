"""Start a command so that every Python process of it runs through `tensorprobe.capture.script`.

    train.py …           ─► python …/script_start.py train.py …
    torchrun … train.py  ─► torchrun … …/script_start.py train.py …
    -m package.train …   ─► python -m tensorprobe.script_start -m package.train …

Modules are looked for as without us: after `-m` in the working directory first, by a script in its
own folder.

The options travel in one environment variable, as JSON. The command takes the place of this
process, so that its exit code, its signals and its terminal are its own. Nothing here needs torch,
unless a launcher's arguments have to be understood.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tensorprobe.config import DEFAULT_DUMP_PATH, load_config
from tensorprobe.errors import ConfigError

__all__ = ["OPTIONS_VARIABLE", "launch", "rewrite_command", "start_watched"]

OPTIONS_VARIABLE = "TENSORPROBE_RUN"
"""Where the processes find the options of `tensorprobe run`."""

_MODULE = "tensorprobe.script_start"
_SCRIPT = str(Path(__file__).absolute().parent.parent / "script_start.py")
_PYTHON = re.compile(r"python[0-9.]*")
# What torchrun is, and what it was before.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def launch(command: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Run a script, or a launcher with one, in place of this process, and capture it.

    Args:
        command: what `rewrite_command` takes.
        options: arguments of `load_config`.

    Raises:
        ConfigError: the options or the command cannot be used.
    """
    # Here, so that a mistake is told once and not by every process of a launcher.
    config = load_config(**options)
    start_watched(command, config.dump_path or DEFAULT_DUMP_PATH, OPTIONS_VARIABLE, options)


def start_watched(
    command: Sequence[str],
    folder: str | os.PathLike[str],
    variable: str,
    options: Mapping[str, Any],
) -> NoReturn:
    """Run a script, or a launcher with one, in place of this process, and have it watched.

    Args:
        command: what `rewrite_command` takes.
        folder: where the results will go; made here, if need be.
        variable: the environment variable in which the processes find the options.
        options: what JSON can hold.

    Raises:
        ConfigError: the folder cannot be made, or the command not be started.
    """
    _check_folder(folder)
    rewritten = rewrite_command(command)
    os.environ[variable] = json.dumps(options)
    try:
        os.execvp(rewritten[0], rewritten)  # noqa: S606 - the user's own command
    except OSError as err:
        raise ConfigError(f"{rewritten[0]} cannot be started: {err.strerror}") from err


def _check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a folder that cannot be made before a long run has gone by without a dump."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as err:
        reason = (
            "there is a file of that name" if isinstance(err, FileExistsError) else err.strerror
        )
        raise ConfigError(
            f"the folder {os.fspath(path)} cannot be made: {reason}; choose another with -o"
        ) from err


def rewrite_command(command: Sequence[str]) -> list[str]:
    """Let a command run its script through `tensorprobe.capture.script`.

    >>> rewrite_command(["python3", "-u", "-m", "package.train", "--lr", "3"])
    ['python3', '-u', '-m', 'tensorprobe.script_start', '-m', 'package.train', '--lr', '3']

    Args:
        command: `train.py …` or `-m package.train …`, with or without `python` before it;
            `torchrun … train.py …`, or `-m torch.distributed.run` or `.launch` in its place.

    Raises:
        ConfigError: it is none of these.
    """
    words = list(command)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise ConfigError("there is no script to run; try: tensorprobe run train.py")
    if Path(words[0]).name == "torchrun":
        # Not every environment that has torch has its scripts in the path.
        found = [words[0]] if shutil.which(words[0]) else [sys.executable, "-m", _LAUNCHERS[0]]
        return [*found, *_rewrite_launch(_LAUNCHERS[0], words[1:])]
    if words == ["-m"]:
        raise ConfigError("there is no module behind -m; try: tensorprobe run -m package.train")
    python = sys.executable
    flags: list[str] = []
    if _PYTHON.fullmatch(Path(words[0]).name):
        python = words[0]
        flags, words = _split_flags(words[1:])
    elif words[0].endswith(".py") and not os.path.exists(words[0]):
        raise ConfigError(f"{words[0]} does not exist; check the path")
    elif not os.path.isfile(words[0]) and words[0] != "-m":
        raise ConfigError(
            f"{words[0]} is no Python script, and no launcher but torchrun is known here; put "
            "tensorprobe behind another one, as in: mpirun -n 2 tensorprobe run train.py"
        )
    if words[0] == "-m" and words[1:2] and words[1] in _LAUNCHERS:
        return [python, *flags, *words[:2], *_rewrite_launch(words[1], words[2:])]
    return [python, *flags, *(["-m", _MODULE] if words[0] == "-m" else [_SCRIPT]), *words]


def _split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the flags of `python` from the script that they stand before."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-m":
        if words[place] in ("-", "-c"):
            raise ConfigError(f"python {words[place]} cannot be captured; give a script or -m")
        # These two take the next word as well.
        place += 2 if words[place] in ("-W", "-X") else 1
    if not words[place:]:
        raise ConfigError("there is no script to run; try: tensorprobe run python train.py")
    return words[:place], words[place:]


def _rewrite_launch(launcher: str, arguments: list[str]) -> list[str]:
    """Let torchrun, or what it was before, run us, and us the script."""
    parsed = import_module(launcher).parse_args(arguments)
    for option in ("no_python", "run_path"):
        if getattr(parsed, option):
            raise ConfigError(
                f"torchrun --{option.replace('_', '-')} cannot be captured; leave the option out"
            )
    script = [parsed.training_script, *parsed.training_script_args]
    own = arguments[: len(arguments) - len(script)]
    if parsed.module and not getattr(parsed, "use_env", True):
        # It would stand before the -m that is for us.
        raise ConfigError(
            f"{launcher} -m hands --local-rank on and cannot be captured so; use torchrun -m, or "
            "add --use-env"
        )
    # Where there is a -m already, it now means our module.
    return [*own, _MODULE, "-m", *script] if parsed.module else [*own, _SCRIPT, *script]
