"""Threads that share work, in a way that an interrupt at any moment leaves none waiting for ever.

A pool of the standard library may not be interrupted: Ctrl-C, when the caller has just been given
a lock of `threading.Condition`, keeps that locked, and whoever ends the pool then waits for a
thread that waits for the lock. Here both sides meet in queues alone, which are of one piece.

Python waits for a new thread to say that it runs, and one that finds no memory to do so ends
without a word. So a thread is only started where there is room for it; else the caller does its
work.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from tensorprobe.system.interrupts import uninterrupted

__all__ = ["Pending", "ThreadPool", "start_thread"]

Result = TypeVar("Result")
Item = TypeVar("Item")
_Tasks: TypeAlias = "SimpleQueue[Pending[Any] | None]"

# What a thread needs beside its stack until it runs, with room for what others take meanwhile.
_ROOM = 16 << 20
_USUAL_STACK = 8 << 20


def start_thread(thread: threading.Thread) -> bool:
    """Start a thread; returns whether there was room for it."""
    try:
        # Given back at once: it is only asked for.
        mmap.mmap(-1, (threading.stack_size() or _stack_limit()) + _ROOM).close()
        # One that was interrupted there may wait for ever.
        with uninterrupted():
            thread.start()
    except (OSError, MemoryError, RuntimeError):
        return False
    return True


def _stack_limit() -> int:
    try:
        import resource
    except ImportError:
        return _USUAL_STACK
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _USUAL_STACK if limit == resource.RLIM_INFINITY else limit


class Pending(Generic[Result]):
    """Something that a thread does.

    Args:
        function: what is called.
        arguments: with what.
    """

    __slots__ = ("_bell", "_error", "_is_done", "_result", "_work")

    def __init__(self, function: Callable[..., Result], *arguments: Any) -> None:
        self._work: tuple[Callable[..., Result], tuple[Any, ...]] | None = function, arguments
        self._result: Result
        self._error: BaseException | None = None
        self._is_done = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    @property
    def is_done(self) -> bool:
        """Whether `result` need not wait."""
        return self._is_done

    def result(self) -> Result:
        """Wait for it; returns what it returned.

        Raises:
            BaseException: what it raised.
        """
        while not self._is_done:
            self._bell.get()
        if self._error is not None:
            raise self._error
        return self._result

    def do(self) -> None:
        """Do it, in whatever thread this is."""
        work, self._work = self._work, None
        assert work is not None, "done once"
        try:
            self._result = work[0](*work[1])
        except BaseException as err:  # noqa: BLE001 - raised where it is waited for
            self._error = err
        # It may hold a file, or memory that somebody waits for.
        del work
        self._is_done = True
        self._bell.put(None)


class ThreadPool:
    """Some threads, which begin with the first tasks and end with the block, or by `close`.

    A block that ends by an error leaves undone what was not begun.

    >>> with ThreadPool(2) as pool:
    ...     task = pool.submit(pow, 2, 10)
    ...     task.result(), list(pool.map(len, ["a", "bc"]))
    (1024, [1, 2])

    Args:
        count: how many threads at most.
        name: what they are called.
    """

    def __init__(self, count: int, name: str = "tensorprobe") -> None:
        self._count = count
        self._name = name
        self._tasks: _Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ending: list[threading.Thread] = []
        # A signal's handler may come back here.
        self._lock = threading.RLock()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Pending[Result]:
        """Have something called soon."""
        task = Pending(function, *arguments)
        with self._lock:
            tasks = self._tasks
            tasks.put(task)
            if len(self._threads) < self._count:
                # Not to be waited for at the end of the process: whoever needs the work closes.
                thread = threading.Thread(target=_work, args=(tasks,), name=self._name, daemon=True)
                with uninterrupted():
                    if start_thread(thread):
                        self._threads.append(thread)
            is_alone = not self._threads
        if is_alone:
            with suppress(Empty):
                while (waiting := tasks.get_nowait()) is not None:
                    waiting.do()
        return task

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function with each item; yields the results in their order."""
        tasks = [self.submit(function, item) for item in items]
        return (task.result() for task in tasks)

    def close(self) -> None:
        """Return when everything is done and every thread has ended."""
        with self._lock:
            tasks, self._tasks = self._tasks, SimpleQueue()
            self._ending += self._threads
            self._threads = []
            tasks.put(None)
        # Who is interrupted here and comes again waits for the rest.
        for thread in list(self._ending):
            thread.join()
            with suppress(ValueError):
                self._ending.remove(thread)

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            with suppress(Empty):
                while True:
                    self._tasks.get_nowait()
        self.close()


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        task.do()
        # Before the wait for the next one: its result may be large.
        del task
    # The next thread is to end, too.
    tasks.put(None)
