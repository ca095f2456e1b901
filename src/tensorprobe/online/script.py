"""Check a script online that was not edited: what `tensorprobe run --online` starts.

launch_checked ─► python script_start.py train.py … ─► main ─► run_script (capture), checked
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from tensorprobe.capture.launch import start_watched
from tensorprobe.capture.script import follow_optimizer, run_script
from tensorprobe.errors import TensorprobeError
from tensorprobe.online.check import OnlineCheck
from tensorprobe.system.standard_streams import complain, reserve_descriptors

__all__ = ["launch_checked", "main"]

_VARIABLE = "TENSORPROBE_ONLINE"


def launch_checked(command: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Run a script, or a launcher with one, in place of this process, and check it.

    Args:
        command: `train.py …`, `python …`, `-m package.train …` or `torchrun …`.
        options: arguments of `OnlineCheck`.

    Raises:
        ConfigError: the options or the command cannot be used.
    """
    # Here, so that a mistake is told once and not by every process of a launcher.
    OnlineCheck(**options)
    start_watched(command, options.get("path", "."), _VARIABLE, options)


def main() -> NoReturn:
    """Run what this process was started for, and check it.

    Raises:
        SystemExit: always.
    """
    reserve_descriptors()
    try:
        options = json.loads(os.environ.pop(_VARIABLE))
        run_script(sys.argv[1:], partial(_check, OnlineCheck(**options)))
    except TensorprobeError as err:
        complain(str(err))
        sys.exit(2)


def _check(check: OnlineCheck, undo: contextlib.ExitStack) -> None:
    steps = _Steps(check)
    for handle in follow_optimizer(steps):
        undo.callback(handle.remove)
    undo.enter_context(check)


class _Steps:
    """Tells a check of the optimizer's steps, whose own operators are checked like all others."""

    is_open_elsewhere = False
    is_closed = False

    def __init__(self, check: OnlineCheck) -> None:
        self.is_held = False
        self._check = check

    def step(self) -> None:
        """A step has ended."""
        self._check.step()
