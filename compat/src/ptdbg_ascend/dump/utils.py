"""`set_dump_path`, `set_dump_switch` and those that go with them."""

from __future__ import annotations

import os
from typing import Any

from ptdbg_ascend.common.version import __version__
from tensorprobe.capture.ptdbg import switch as _switch

__all__ = [
    "set_backward_input",
    "set_dump_path",
    "set_dump_switch",
    "set_overflow_check_switch",
]


def set_dump_path(
    fpath: str | os.PathLike[str] | None = None, dump_tag: str = "ptdbg_dump"
) -> None:
    """Say where the next dump goes: `{fpath}/{dump_tag}_v{version}`."""
    _switch.set_path(fpath, dump_tag)


def set_dump_switch(
    switch: str,
    mode: str = "all",
    scope: Any = None,
    api_list: Any = None,
    filter_switch: str = "OFF",
    dump_mode: Any = "all",
    summary_only: bool = False,
    summary_mode: str | None = None,
) -> None:
    """Turn the recording of calls ON, or OFF; what was recorded is written then."""
    _switch.turn(
        switch,
        version=__version__,
        mode=mode,
        scope=scope,
        api_list=api_list,
        filter_switch=filter_switch,
        dump_mode=dump_mode,
        summary_only=summary_only,
        summary_mode=summary_mode,
    )


def set_overflow_check_switch(switch: str, filter_switch: str = "OFF") -> None:
    """Turn the search for calls that overflow ON or OFF."""
    _switch.turn_overflow_check(switch, version=__version__, filter_switch=filter_switch)


def set_backward_input(backward_input: Any) -> None:
    """Do nothing: the backward pass is recorded as it runs."""
