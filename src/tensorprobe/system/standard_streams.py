"""The three streams that a process is started with, any of which may be closed, full or unread.

    2>&-  >/dev/full  | head -1

A command goes on without a stream that it cannot write to: its files and its exit code are wanted,
too. Who wants to stop there is told by an exception.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tensorprobe.system.clean_text import one_line

__all__ = ["Output", "announce", "complain", "outputs", "reserve_descriptors"]


def announce(text: str) -> None:
    """Print a line as the older tools print theirs; scripts look for some of them."""
    stream = sys.stdout
    if stream is not None:
        # Who reads nothing any more does not end a training.
        with suppress(OSError, ValueError):
            stream.write(f"[INFO] {one_line(text)}\n")
            stream.flush()


def complain(text: str) -> None:
    """Say what is wrong on stderr, in one line whatever a file's name holds."""
    stream = sys.stderr
    if stream is None:
        return
    line = f"tensorprobe: {one_line(text)}\n"
    # Who can be told nothing is not told that either.
    with suppress(OSError, ValueError):
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError, ValueError):
            stream.write(line)
            return
        stream.flush()
        # Not through the stream: what it could not write it would try again at the very end, and
        # the exit code would become one of Python's.
        os.write(descriptor, line.encode(stream.encoding or "utf-8", "backslashreplace"))


def reserve_descriptors() -> None:
    """Take the numbers of streams that are closed, so that no file of ours gets one of them.

    Whoever writes to the descriptor 2, as libraries in C do, would write into it. As in a closed
    stream nothing can be written to those that are taken, nor read from 0, and programs that are
    started find them closed.
    """
    for number, way in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, way | os.O_CLOEXEC)


class Output(io.RawIOBase):
    """What stands behind a stream of text: a descriptor, for as long as it takes anything.

    Args:
        descriptor: where to write; it stays open.
        stops: asked when it takes nothing any more: whether to raise that, or to go on in silence.

    Attributes:
        trouble: why it takes nothing any more.
    """

    def __init__(self, descriptor: int, *, stops: Callable[[], bool]) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._stops = stops
        self.trouble: OSError | None = None

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a person may be looking."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Write, and return how much of it."""
        while self.trouble is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                # A terminal that somebody has told not to wait.
                select.select([], [self._descriptor], [])
            except OSError as err:
                self.trouble = err
                if self._stops():
                    raise
        return len(data)


@contextmanager
def outputs(*, stops: Callable[[], bool]) -> Iterator[list[Output]]:
    """Let stdout and stderr be such outputs while the block runs; yields that of stdout, if any.

    A stream that is closed takes everything and keeps nothing. One that somebody has put into the
    place of the system's own stays.

    Args:
        stops: for `Output`, of stdout.
    """
    reserve_descriptors()
    before = sys.stdout, sys.stderr
    own: list[Output] = []
    sys.stdout = _stand_in(before[0], own, stops)
    sys.stderr = _stand_in(before[1], [], lambda: False)
    try:
        yield own
    except KeyboardInterrupt:
        # What waits to be written may have no reader to wait for.
        for output in own:
            output.trouble = output.trouble or InterruptedError()
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Somebody may have closed it meanwhile.
            with suppress(ValueError):
                stream.flush()
        sys.stdout, sys.stderr = before


def _stand_in(stream: TextIO | None, made: list[Output], stops: Callable[[], bool]) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return stream
    output = Output(descriptor, stops=stops)
    made.append(output)
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=stream.encoding,
        # A terminal that cannot show a sign gets its number instead of an error.
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )
