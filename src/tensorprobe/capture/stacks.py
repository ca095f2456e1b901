"""Where a call was made, without the tool's own frames; each distinct stack is built once."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

from tensorprobe.records import Frame

__all__ = ["StackReader"]

_OWN_FOLDER = str(Path(__file__).parent)
# Between a user's call and our watcher torch puts frames that say nothing.
_PASSED_OVER = frozenset((torch.overrides.__file__,))
_DEEPEST = 200


_Key = tuple[tuple[CodeType, int], ...]
# Kept for the whole process: the steps of a training make their calls in the same places.
_seen: dict[_Key, tuple[Frame, ...]] = {}
_is_own: dict[CodeType, bool] = {}
# A program that makes up code as it goes must not fill the memory.
_MOST_SEEN = 50_000


class StackReader:
    """Reads call stacks; each distinct one is built once in a process."""

    def read(self) -> tuple[Frame, ...]:
        """Return the frames of the caller, innermost first."""
        key: list[tuple[CodeType, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(key) < _DEEPEST:
            code = frame.f_code
            is_own = _is_own.get(code)
            if is_own is None:
                name = code.co_filename
                is_own = name.startswith(_OWN_FOLDER) or name in _PASSED_OVER
                _is_own[code] = is_own
            if not is_own:
                key.append((code, frame.f_lasti))
            frame = frame.f_back
        places = tuple(key)
        known = _seen.get(places)
        if known is None:
            if len(_seen) >= _MOST_SEEN:
                _seen.clear()
                _is_own.clear()
            known = _seen[places] = tuple(_frame_of(code, place) for code, place in key)
        return known


def _frame_of(code: CodeType, place: int) -> Frame:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= place < end and number is not None:
            line = number
            break
    source = linecache.getline(code.co_filename, line).strip()
    return Frame(code.co_filename, line, code.co_name, source)
