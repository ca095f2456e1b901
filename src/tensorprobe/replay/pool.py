"""Spread calls over worker processes and devices, and outlive whatever happens to those.

    orders ─► workers, a few calls ahead each ─► answers, in any order; of one worker in theirs

A worker that dies or does not answer in time costs the call that it was at: that call's answer says
so, the calls behind it go to others, and a new worker takes its place. Where failing calls
are kept, that one is told first to keep the call, without making it.

A worker runs in an empty folder, without what looks like a secret in its environment, and limits
itself (`sandbox`) before it takes its first order. One that is done may wait for the next job of
the same kind: to import torch takes longer than most of what is asked.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import tensorprobe
from tensorprobe import errors
from tensorprobe.errors import TensorprobeError
from tensorprobe.replay.memory import share_of_memory
from tensorprobe.replay.sandbox import clean_environment
from tensorprobe.system.cores import count_cores

__all__ = ["Answer", "Order", "idle_workers", "run_orders"]

# So that a worker need not wait for its next call.
_AHEAD = 4
# What surely fits into a pipe that nobody reads.
_PIPE_BYTES = 1 << 12
_LONGEST_ANSWER = 1 << 26
_START_SECONDS = 600.0
_MANY_THREADS = 8
_HINTS = {
    signal.SIGILL: "; some processors announce instructions that they lack: set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 and try again",
    signal.SIGKILL: "; perhaps memory ran out",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One call to make.

    Attributes:
        part: the part of the dump, by its path.
        name: the call's name.
        loss: what became of the worker that made it; then it is kept and not made again.
        more: what else the worker is told, by name.
    """

    part: str
    name: str
    loss: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the line that a worker gets."""
        return {"part": self.part, "name": self.name, "loss": self.loss, **self.more}


class Answer(NamedTuple):
    """What a worker said of an order, or why it said nothing: one of both is there."""

    found: Any
    loss: str = ""


Read = Callable[[dict[str, Any]], Any]


def run_orders(
    orders: Sequence[Order],
    settings: dict[str, Any],
    *,
    devices: Sequence[str],
    jobs: int = 1,
    timeout: float,
    module: str,
    read: Read = dict,
    imports: Sequence[str] = (),
    memory: float | None = None,
    ahead: int = _AHEAD,
    may_wait: bool = False,
    is_wanted: Callable[[Order], bool] = lambda order: True,
    on_device: Callable[[str, str], None] | None = None,
) -> Generator[tuple[Order, Answer], None, None]:
    """Give orders to worker processes and yield each answer as it comes.

    Args:
        orders: the calls.
        settings: what every worker is told; its device and threads are added.
        devices: workers take them in turn.
        jobs: how many workers; at least one for each device.
        timeout: how many seconds one call may take.
        module: what a worker process runs.
        read: makes of an answer what is wanted of it; raises KeyError, TypeError or ValueError of
            one that it cannot be made of.
        imports: the modules that hold the user's own functions.
        memory: how many GiB a worker may take; None: its share of what there is.
        ahead: how many calls a worker is told of before it has answered them.
        may_wait: whether workers that are done may wait for another job of this process.
        is_wanted: asked of each order when its turn has come; others are left out.
        on_device: told, of each worker that is ready, the device that it was given and the one that
            it opened; what it raises ends the run.

    Raises:
        TensorprobeError: no worker can start.
    """
    waiting = deque(orders)
    count = min(max(jobs, len(devices)), max(len(orders), 1))
    settings = {
        **settings,
        "threads": max(1, count_cores() // count),
        "memory": share_of_memory(count, gigabytes=memory),
        "imports": list(imports),
        "folder": os.getcwd(),
    }
    workers: list[_Worker] = []
    with selectors.DefaultSelector() as selector:
        try:
            for number in range(count if orders else 0):
                told = {**settings, "device": devices[number % len(devices)]}
                begin = _engage if may_wait else _Worker
                worker = begin(told, module, read)
                workers.append(worker)
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            while workers:
                for worker in workers:
                    worker.give(waiting, ahead, is_wanted)
                wait = min(worker.deadline(timeout) for worker in workers) - time.monotonic()
                ready = [key.data for key, _ in selector.select(max(0.0, min(wait, 1.0)))]
                for worker in list(workers):
                    yield from worker.collect(on_device) if worker in ready else ()
                    is_late = time.monotonic() > worker.deadline(timeout)
                    if is_late:
                        worker.kill()
                    if not (worker.is_over or is_late):
                        continue
                    selector.unregister(worker.answers)
                    workers.remove(worker)
                    yield from worker.bury(waiting, timeout if is_late else None)
                    if waiting:
                        heir = _Worker(worker.settings, module, read)
                        workers.append(heir)
                        selector.register(heir.answers, selectors.EVENT_READ, heir)
                if not waiting:
                    for worker in [worker for worker in workers if worker.is_idle]:
                        if may_wait:
                            selector.unregister(worker.answers)
                            workers.remove(worker)
                            _let_wait(worker)
                        else:
                            worker.dismiss()
        finally:
            for worker in workers:
                if may_wait and worker.is_idle:
                    _let_wait(worker)
                else:
                    worker.abandon()


# Workers that are done, by what they are; of this process, not of one that it was forked from.
_idle: dict[tuple[Any, ...], _Worker] = {}


def _kind_of(settings: Mapping[str, Any], module: str) -> tuple[Any, ...]:
    """Return what must be the same for a worker to take another job."""
    told = (settings["device"], settings["memory"], tuple(settings["imports"]), os.getpid())
    return (module, *told, tuple(sorted(_environment(settings).items())))


def _engage(settings: dict[str, Any], module: str, read: Read) -> _Worker:
    """Return a worker for a job: one that waits for such, or a new one."""
    idle = _idle.pop(_kind_of(settings, module), None)
    if idle is not None and idle.take_job(settings, read):
        return idle
    return _Worker(settings, module, read)


def _let_wait(worker: _Worker) -> None:
    other = _idle.setdefault(_kind_of(worker.settings, worker.module), worker)
    if other is not worker:
        worker.abandon()


def idle_workers() -> list[_Worker]:
    """Return the workers that wait for another job of this process."""
    return [worker for kind, worker in _idle.items() if os.getpid() in kind]


@atexit.register
def _end_idle() -> None:
    for worker in idle_workers():
        worker.abandon()


class _Worker:
    """One worker process, from this side."""

    def __init__(self, settings: dict[str, Any], module: str, read: Read) -> None:
        self.settings = settings
        self.module = module
        self._read_answer = read
        self.at_work: deque[Order] = deque()
        self.is_over = False
        self._is_ready = False
        self._is_dismissed = False
        self._said_bye = False
        self._talks_nonsense = False
        self._failure: TensorprobeError | None = None
        self._rest = b""
        self._under_way = 0
        self._since = time.monotonic()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._folder = tempfile.TemporaryDirectory(prefix="tensorprobe-")
        order_read, order_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [
                sys.executable,
                "-m",
                module,
                str(order_read),
                str(answer_write),
                str(os.getpid()),
            ],
            pass_fds=(order_read, answer_write),
            env=_environment(settings),
            # Python looks for modules there, and the folder of the command may be that of a dump.
            cwd=self._folder.name,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )
        os.close(order_read)
        os.close(answer_write)
        self.answers = answer_read
        self._orders = os.fdopen(order_write, "wb", buffering=0)
        self._send(_line({"settings": settings}))

    @property
    def process_id(self) -> int:
        """The number that the system gave the process."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it has answered everything and could go on."""
        return self._is_ready and not (self.at_work or self.is_over or self._is_dismissed)

    def take_job(self, settings: dict[str, Any], read: Read) -> bool:
        """Begin another job; returns whether it is still there to do it."""
        self._read_answer = read
        if self._process.poll() is not None:
            self.abandon()
            return False
        self.settings, self._is_ready, self._since = settings, False, time.monotonic()
        self._send(_line({"settings": settings}))
        return True

    def give(self, waiting: deque[Order], ahead: int, is_wanted: Callable[[Order], bool]) -> None:
        """Hand over the next calls, a few ahead of the one that it is at."""
        while self._is_ready and not self.is_over and waiting and len(self.at_work) < ahead:
            order = waiting.popleft()
            if not is_wanted(order):
                continue
            line = _line(order.as_json())
            if self.at_work and self._under_way + len(line) > _PIPE_BYTES:
                # One that is at a call reads nothing, and nobody may wait for it without an end.
                waiting.appendleft(order)
                break
            if not self.at_work:
                self._since, self._under_way = time.monotonic(), 0
            self._under_way += len(line)
            self.at_work.append(order)
            self._send(line)

    def collect(
        self, on_device: Callable[[str, str], None] | None
    ) -> Iterator[tuple[Order, Answer]]:
        """Yield the results that have arrived."""
        data = os.read(self.answers, 1 << 16)
        if not data:
            self.is_over = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > _LONGEST_ANSWER:
                raise ValueError("a line without an end")
            for line in lines:
                self._since = time.monotonic()
                found = self._heard(json.loads(line), on_device)
                if found is not None:
                    yield found
        except (KeyError, RecursionError, TypeError, ValueError):
            # What a call made of it answers for it; nothing of that is believed.
            self._talks_nonsense = True
            self.is_over = True
            self.kill()

    def _heard(
        self, message: dict[str, Any], on_device: Callable[[str, str], None] | None
    ) -> tuple[Order, Answer] | None:
        """Take one message; returns the answer to an order, where it is one.

        Raises:
            KeyError, TypeError, ValueError: it is no message of ours.
        """
        if not isinstance(message, dict):
            raise TypeError("no message")
        if "ready" in message:
            device = str(message["device"])
            self._is_ready = True
            if on_device is not None:
                on_device(self.settings["device"], device)
        elif "failed" in message:
            kind = getattr(errors, str(message.get("kind")), TensorprobeError)
            is_ours = isinstance(kind, type) and issubclass(kind, TensorprobeError)
            self._failure = (kind if is_ours else TensorprobeError)(str(message["failed"]))
        elif "bye" in message:
            self._said_bye = True
        elif not self.at_work:
            raise ValueError("an answer to nothing")
        else:
            answer = Answer(self._read_answer(message))
            return self.at_work.popleft(), answer
        return None

    def deadline(self, timeout: float) -> float:
        """Return when to give up on it."""
        if self._is_ready and not self.at_work:
            return self._since + 1e9
        return self._since + (timeout if self._is_ready else _START_SECONDS)

    def dismiss(self) -> None:
        """Tell it that there is nothing more to do."""
        if not self._is_dismissed and self._is_ready:
            self._is_dismissed = True
            self._orders.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def abandon(self) -> None:
        """End it and let go of everything that was for it."""
        self.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        # What it did not read any more is of no use to anybody.
        with suppress(OSError):
            self._orders.close()
        os.close(self.answers)
        self._errors.close()
        self._folder.cleanup()

    def bury(self, waiting: deque[Order], timeout: float | None) -> Iterator[tuple[Order, Answer]]:
        """Give back its calls and yield the result of the one that it died of.

        Args:
            waiting: where calls that it did not get to go.
            timeout: the limit that it did not keep; None if it ended by itself.

        Raises:
            TensorprobeError: it never started.
        """
        code = self._process.wait()
        last_words = self._last_words()
        self._close()
        if not self._is_ready:
            raise self._failure or TensorprobeError(f"a worker cannot start: {last_words}")
        culprit = None if self._said_bye or not self.at_work else self.at_work.popleft()
        waiting.extendleft(reversed(self.at_work))
        self.at_work.clear()
        if culprit is not None and culprit.loss:
            yield culprit, Answer(None, f"{culprit.loss}; it could not be saved")
        elif culprit is not None:
            # One that is late may have been dying, which takes its time on a busy machine.
            message = (
                "its process answered what no worker answers, and was ended"
                if self._talks_nonsense
                else _cause_of_death(code)
                if timeout is None or code != -signal.SIGKILL
                else f"no answer within {timeout:g} s, so its process was ended; "
                "--timeout allows more"
            )
            if self.settings.get("save_errors") is None:
                yield culprit, Answer(None, message)
            else:
                waiting.appendleft(replace(culprit, loss=message))

    def _send(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._orders.write(rest) :]
        except BrokenPipeError:
            # It died; reading its answers will show that.
            self.is_over = False

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a worker, in which it finds this very package.

    Where it has many threads, torch takes memory for large tensors in large pages: they are made
    and used once, and the threads would wait for each other to get small pages from the system.
    """
    here = str(Path(tensorprobe.__file__).parent.parent)
    # It runs in another folder, and a blank one would mean that.
    given = (os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = (here, *given) if os.environ.get("PYTHONPATH") else (here,)
    large_pages = {"THP_MEM_ALLOC_ENABLE": "1"} if settings["threads"] >= _MANY_THREADS else {}
    own = clean_environment(os.environ, keeps_others=bool(settings["imports"]))
    return {**large_pages, **own, "PYTHONPATH": os.pathsep.join(paths)}


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code} while it ran this call"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"the process was ended by signal {-code} while it ran this call"
    return f"the process died of {name.name} while it ran this call{_HINTS.get(name, '')}"
