"""The folder that the results of a command go to, and the time in their names."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

from tensorprobe.errors import ReportError
from tensorprobe.system.text_file import show_path

__all__ = ["free_timestamp", "make_folder"]

_TIMES = re.compile(r"_(\d{14})\.")


def free_timestamp(output: Path) -> str:
    """Return the time, or the next second of which the folder holds no result.

    A script that compares several pairs is done with one of them in less than a second, and would
    replace its files by those of the next.
    """
    taken = {found for name in os.listdir(output) for found in _TIMES.findall(name)}
    when = datetime.now()
    while (text := when.strftime("%Y%m%d%H%M%S")) in taken:
        when += timedelta(seconds=1)
    return text


def make_folder(output: Path) -> None:
    """Make the folder, and those above it, if need be.

    Raises:
        ReportError: it cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else err
        raise ReportError(
            f"the folder {show_path(output)} cannot be made: {reason}; choose another with -o"
        ) from err
