"""Where a call was made, without the tool's own frames; each distinct stack is built once."""

from __future__ import annotations

import linecache
import runpy
import sys
from array import array
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from tensorprobe.records import Frame
from tensorprobe.system.extensions import load_compiled

__all__ = ["StackReader"]

_OWN_FOLDERS = tuple(str(Path(__file__).parent.with_name(room)) for room in ("capture", "online"))
# Between a user's call and our watcher torch puts frames that say nothing; below a script stand
# those by which we run it.
_PASSED_OVER = frozenset(
    (
        torch.overrides.__file__,
        runpy.run_module.__code__.co_filename,
        str(Path(__file__).parent.with_name("script_start.py")),
    )
)
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_DEEPEST = 200


# Codes stand for themselves by their ids: a code's own hash reads all of it, each time. What is in
# here keeps the codes alive, so that no id is handed out again.
_codes: dict[int, CodeType | None] = {}
# The tool's own, which stand as None there.
_hidden: list[CodeType] = []
# Kept for the whole process: the steps of a training make their calls in the same places.
_seen: dict[bytes, tuple[Frame, ...]] = {}
_compiled = load_compiled("tensorprobe.capture._calls", "stack_key", part="capture._frames")
# A program that makes up code as it goes must not fill the memory.
_MOST_SEEN = 50_000


class StackReader:
    """Reads call stacks; each distinct one is built once in a process."""

    def parts(self) -> dict[str, Any]:
        """Return what _fast_recorder.c reads a stack with, by the names that it knows."""
        codes = None if _compiled is None else _codes
        return {"codes": codes, "stacks": _seen, "deepest": 2 * _DEEPEST, "read_stack": self.read}

    def read(self) -> tuple[Frame, ...]:
        """Return the frames of the caller, innermost first; the same object for the same stack."""
        frame = sys._getframe(1)
        key: bytes | None = None
        if _compiled is not None:
            # None where a code is new.
            key = _compiled.stack_key(frame, _codes, 2 * _DEEPEST)
        if key is None:
            key = _key_of(frame)
        stack = _seen.get(key)
        if stack is None:
            numbers = array("q", key)
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            stack = _from_user(
                tuple(_frame_of(_codes[code], instruction) for code, instruction in pairs)
            )
            if len(_seen) >= _MOST_SEEN or len(_codes) >= _MOST_SEEN:
                _seen.clear()
                _codes.clear()
                _hidden.clear()
            else:
                _seen[key] = stack
        return stack


def _key_of(innermost: FrameType) -> bytes:
    """Return the codes of a stack by their ids, and the instruction in each; learns new codes."""
    key = array("q")
    frame: FrameType | None = innermost
    while frame is not None and len(key) < 2 * _DEEPEST:
        code = id(frame.f_code)
        if code not in _codes:
            name = frame.f_code.co_filename
            is_shown = not name.startswith(_OWN_FOLDERS) and name not in _PASSED_OVER
            _codes[code] = frame.f_code if is_shown else None
            if not is_shown:
                _hidden.append(frame.f_code)
        if _codes[code] is not None:
            key.append(code)
            key.append(frame.f_lasti)
        frame = frame.f_back
    return key.tobytes()


def _from_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Leave out what torch itself put between the user's call and us."""
    for number, frame in enumerate(frames):
        if not frame.path.startswith(_TORCH_FOLDER):
            return frames[number:]
    return frames


def _frame_of(code: CodeType | None, instruction: int) -> Frame:
    assert code is not None, "only those that are shown stand in a key"
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
            break
    source = linecache.getline(code.co_filename, line).strip()
    return Frame(code.co_filename, line, code.co_name, source)
