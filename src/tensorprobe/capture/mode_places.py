"""Put our modes under those of others, and take them out from wherever they are.

torch's modes form a stack in each thread, and whoever leaves one pops what is on top. A capture
begins and ends where the user says, perhaps in the middle of a `with torch.device(…)`: on top of it
our mode would be the one that is popped at its end, and the device would stay.

Inside a backward pass torch keeps the modes that were on at its beginning, and puts them back
behind each node: what is removed there is removed again as soon as the pass is over. So it is with
a mode that is removed, by a signal's handler, while it looks at a call: torch has it aside.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

__all__ = [
    "end_removals",
    "function_modes",
    "insert_dispatch_mode",
    "insert_function_mode",
    "is_in_backward_pass",
    "remove_dispatch_mode",
    "remove_function_mode",
    "set_function_modes",
]

# Newer torch keeps the default device at the very bottom, and looks for it there.
_KEEPS_BOTTOM = "_len_torch_function_stack" in DeviceContext.__exit__.__code__.co_names


# Modes that come back after they were removed, with their threads; and whether they were on.
_left: list[tuple[int, Any, bool]] = []


def is_in_backward_pass() -> bool:
    """Whether this thread is inside a backward pass."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


def end_removals() -> None:
    """Remove what could not be removed for good, now that it can."""
    if not _left or is_in_backward_pass():
        return
    thread = threading.get_ident()
    for place in [place for place in _left if place[0] == thread]:
        _left.remove(place)
        _, mode, was_on = place
        if not getattr(mode, "is_retired", True):
            # It was out of the way for a while, and is on again.
            continue
        if not isinstance(mode, TorchDispatchMode):
            _take_function_mode_out(mode)
        elif was_on:
            _take_out(mode)
        else:
            _leave(mode)


def function_modes() -> list[Any]:
    """Return the function modes of this thread, the lowest first."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(place) for place in range(count)]


def set_function_modes(modes: list[Any]) -> None:
    """Make these the function modes of this thread."""
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def insert_function_mode(mode: Any) -> None:
    """Turn a function mode on, under those that are on."""
    modes = function_modes()
    context = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    default = getattr(context, "device_context", None) if _KEEPS_BOTTOM else None
    lowest = 1 if modes and modes[0] is default else 0
    set_function_modes([*modes[:lowest], mode, *modes[lowest:]])


def remove_function_mode(mode: Any, *, is_retired: bool = False) -> None:
    """Turn a function mode off, wherever it is.

    Args:
        mode: the mode.
        is_retired: whether it does nothing any more. Then it may stay while torch, which has asked
            whether there is a mode, is about to call it.
    """
    stays = is_retired and _is_called_by_torch()
    _note_removal(mode, was_on=not stays and _take_function_mode_out(mode))


def _is_called_by_torch() -> bool:
    """Whether this happens in the middle of what torch does with modes: in a signal's handler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == torch.overrides.__file__:
            return True
        frame = frame.f_back
    return False


def _take_function_mode_out(mode: Any) -> bool:
    """Take a function mode out of this thread's; returns whether it was there."""
    modes = function_modes()
    others = [one for one in modes if one is not mode]
    if len(others) < len(modes):
        set_function_modes(others)
    return len(others) < len(modes)


def insert_dispatch_mode(mode: TorchDispatchMode) -> None:
    """Turn a dispatch mode on, under those that are on."""
    others = [_pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    try:
        mode.__enter__()  # type: ignore[no-untyped-call]
    finally:
        while others:
            _push_mode(others.pop())


def remove_dispatch_mode(mode: TorchDispatchMode) -> None:
    """Turn a dispatch mode off, wherever it is."""
    _note_removal(mode, was_on=_leave(mode))


def _leave(mode: TorchDispatchMode) -> bool:
    """Take a dispatch mode out of this thread's, and all that it has set."""
    was_on = _take_out(mode)
    if was_on:
        _push_mode(mode)
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    return was_on


def _take_out(mode: TorchDispatchMode) -> bool:
    """Take a dispatch mode out of this thread's; returns whether it was there."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    others = [one for one in modes if one is not mode]
    for one in reversed(others):
        _push_mode(one)
    return len(others) < len(modes)


def _note_removal(mode: Any, *, was_on: bool) -> None:
    if not was_on or is_in_backward_pass():
        _left.append((threading.get_ident(), mode, was_on))
