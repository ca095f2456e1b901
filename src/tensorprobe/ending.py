"""How a command ends: one exit code, and where something is wrong one line that says what.

    0  all is well                          2    something could not be read or used
    1  a check failed                       70   a fault of tensorprobe's own
    130  interrupted

An exit code that stands for a finding is never given by a failure.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from tensorprobe.errors import TensorprobeError
from tensorprobe.system.clean_text import clean_text
from tensorprobe.system.ctrl_c import INTERRUPTED, handler_now, raise_once, set_handler, was_raised
from tensorprobe.system.standard_streams import Output, complain, outputs

__all__ = ["DEBUG_VARIABLE", "Manner", "ended"]

DEBUG_VARIABLE = "TENSORPROBE_DEBUG"
"""Set to anything it does what `--debug` does, for commands that have no such option, too."""

_UNUSABLE = 2
# What sendmail and others give where the program is at fault.
_OUR_FAULT = 70


class Manner:
    """How a command wants to end; it may say so when it has understood its arguments.

    Attributes:
        debug: whether to show the traceback of an error.
        stops_unread: whether to stop when nobody takes its output any more; otherwise it goes on
            for the sake of its files and its exit code.
    """

    # No dataclass, whose module takes longer to load than all of this.
    def __init__(self) -> None:
        self.debug = bool(os.environ.get(DEBUG_VARIABLE))
        self.stops_unread = False


def ended(work: Callable[[Manner], int]) -> int:
    """Do the work of a command, and return the exit code.

    Raises:
        SystemExit: as the work raised it.
    """
    manner = Manner()
    handler, hook = handler_now(), sys.unraisablehook
    try:
        raise_once()
        code = _written(work, manner)
        set_handler(handler)
    except KeyboardInterrupt as err:
        complain(f"interrupted; {err}" if str(err) else "interrupted")
        code = INTERRUPTED
    finally:
        set_handler(handler)
        sys.unraisablehook = hook
    return code


def _written(work: Callable[[Manner], int], manner: Manner) -> int:
    """Do the work; say so where its output could not be written."""
    with outputs(stops=lambda: manner.stops_unread) as own:
        raised: SystemExit | None = None
        try:
            code = _done(work, manner, own)
        except SystemExit as err:
            raised, code = err, 0
        # What is left of it goes now.
        manner.stops_unread = False
        sys.stdout.flush()
    trouble = next((output.trouble for output in own if output.trouble is not None), None)
    if trouble is not None and trouble.errno != errno.EPIPE:
        complain(f"the output cannot be written: {trouble.strerror}")
        code, raised = code or _UNUSABLE, None
    if raised is not None:
        raise raised
    return code


def _done(work: Callable[[Manner], int], manner: Manner, own: list[Output]) -> int:
    try:
        return work(manner)
    except Exception as err:  # noqa: BLE001 - whatever it is, it must not look like a finding
        if was_raised():
            # Somebody in between has made another error of it, as numpy does while it is loaded.
            raise KeyboardInterrupt from None
        if any(err is output.trouble for output in own):
            # Told when all of it is known to be lost.
            return 0
        return _told(err, manner)


def _told(err: Exception, manner: Manner) -> int:
    """Say what is wrong; returns the exit code."""
    _show(err, manner)
    if isinstance(err, TensorprobeError):
        complain(str(err))
    elif isinstance(err, ModuleNotFoundError) and not (err.name or "").startswith("tensorprobe"):
        complain(f"this command needs the package {err.name}, which is not installed here")
    elif isinstance(err, MemoryError):
        complain("this machine has not enough memory for that")
    elif isinstance(err, OSError):
        where = "" if err.filename is None else f"{err.filename}: "
        complain(f"{where}{err.strerror or err}")
    else:
        what = f"{type(err).__name__}: {err}" if str(err) else type(err).__name__
        again = "" if manner.debug else f"; {DEBUG_VARIABLE}=1 shows the traceback"
        complain(f"this is a fault of tensorprobe, please report it: {what}{again}")
        return _OUR_FAULT
    return _UNUSABLE


def _show(err: Exception, manner: Manner) -> None:
    if manner.debug:
        import traceback

        for part in traceback.format_exception(err):
            for line in part.splitlines():
                sys.stderr.write(f"{clean_text(line)}\n")
