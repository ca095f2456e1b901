"""Dumps of this process that are still being finished while the run goes on.

Whoever reads a dump in the process that wrote it finds it whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tensorprobe.system.thread_pool import start_thread

__all__ = ["Finisher", "wait_for_finishers"]

# More pieces of work than these are not left to wait: what they hold is in memory.
_MOST_WAITING = 4
_HEAD_START = 0.004

_at_work: set[Finisher] = set()


def wait_for_finishers() -> None:
    """Return when nothing is being finished any longer."""
    for finisher in list(_at_work):
        finisher.wait()


class Finisher:
    """Does pieces of work beside the run, one after the other, in a thread of its own.

    >>> done = []
    >>> finisher = Finisher()
    >>> finisher.do(lambda: done.append("written"))
    >>> finisher.wait()
    >>> done
    ['written']

    The thread ends with the work, and the process does not end before it.
    """

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None]) -> None:
        """Have something done soon, which tells of its own trouble."""
        if len(self._work) >= _MOST_WAITING:
            self.wait()
        is_alone = False
        with self._lock:
            self._work.append(work)
            if self._thread is None:
                _at_work.add(self)
                self._thread = threading.Thread(target=self._run_later, name="tensorprobe-finisher")
                if is_alone := not start_thread(self._thread):
                    self._thread = threading.current_thread()
        if is_alone:
            # There is no room for another thread.
            self._run()

    def wait(self) -> None:
        """Return when everything is done."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run_later(self) -> None:
        # Who asked gets on first: threads of Python take turns of 5 ms.
        time.sleep(_HEAD_START)
        self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._work:
                    self._thread = None
                    _at_work.discard(self)
                    return
            try:
                self._work[0]()
            finally:
                with self._lock:
                    del self._work[0]
