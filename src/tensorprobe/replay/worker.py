"""The loop of a process that makes calls for another: if it dies or hangs, its call is lost.

    python -m MODULE READ WRITE PARENT      where MODULE calls `serve`

Two pipes carry JSON lines. In: one line of settings, then orders; settings again begin another job.
Out: `{"ready": true, …}` with the device or `{"failed": …}`, then a line for each order, and
`{"bye": true}` before it ends by itself. Nothing but JSON comes back: whatever a call makes of this
process, it cannot make of the one that asked.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

__all__ = ["Answer", "Task", "serve", "warm_up"]

Answer = dict[str, Any]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does with its orders.

    Attributes:
        prepare: given an order, returns what answers it; that is called when its turn has come.
        is_alive: whether the next order can be taken; after some errors a device never answers.
        device: the one that it opened, in words.
        writes_to: the folder that an answer may be kept in; None: it is kept in none.
        is_on_cpu: whether no driver of a device needs more than memory.
    """

    prepare: Callable[[dict[str, Any]], Callable[[], Answer]]
    is_alive: Callable[[], bool] = lambda: True
    device: str = "cpu"
    writes_to: str | None = None
    is_on_cpu: bool = True


def serve(make_task: Callable[[dict[str, Any]], Task]) -> None:
    """Answer orders until there are no more or the device is lost.

    Args:
        make_task: given the settings, returns what is done with an order.
    """
    # Whoever started us is interrupted, too, and ends us; or ends, and we with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(int(sys.argv[3]))
    read_end, write_end = int(sys.argv[1]), int(sys.argv[2])
    with (
        os.fdopen(read_end, "rb", buffering=0) as pipe,
        os.fdopen(write_end, "w") as answers,
    ):
        orders = _Arriving(pipe)
        order = orders.take()
        is_confined = False
        while order is not None:
            settings = order["settings"]
            # After the first line, so that whoever started us need not wait for torch.
            task = _begin(make_task, settings, answers)
            if task is None:
                return
            if not is_confined:
                is_confined = True
                _confine(task, settings)
            _say(answers, {"ready": True, "device": task.device})
            for answer in _answer_all(orders, task):
                _say(answers, answer)
                if not task.is_alive():
                    _say(answers, {"bye": True})
                    return
            order = orders.take()
        _say(answers, {"bye": True})


def _end_with_parent(parent: int) -> None:
    """Have Linux end this process when the one that started it ends, however that ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _begin(
    make_task: Callable[[dict[str, Any]], Task], settings: dict[str, Any], answers: TextIO
) -> Task | None:
    from tensorprobe.errors import TensorprobeError
    from tensorprobe.replay.users import import_modules

    try:
        import torch

        torch.set_num_threads(settings["threads"])
        _import_from(tuple(settings["imports"]), settings["folder"], import_modules)
        return make_task(settings)
    except (TensorprobeError, RuntimeError, ImportError) as err:
        _say(answers, {"failed": f"{err}", "kind": type(err).__name__})
        return None


def _import_from(
    names: tuple[str, ...], folder: str, import_modules: Callable[[tuple[str, ...]], None]
) -> None:
    """Import the user's modules, last of all from the folder that the command was given in.

    For nothing else that folder is looked at: it may be that of a dump.
    """
    if names:
        sys.path.append(folder)
        try:
            import_modules(names)
        finally:
            sys.path.remove(folder)


def _confine(task: Task, settings: dict[str, Any]) -> None:
    from tensorprobe.replay.sandbox import confine

    # Torch's half a million objects stay; looking through them again and again takes time.
    gc.freeze()
    confine(
        memory=settings["memory"],
        writes_to=task.writes_to,
        # Code of the user's own is trusted, and drivers of devices compile.
        is_closed=task.is_on_cpu and not settings["imports"],
    )


class _Arriving:
    """Orders as they come; one can look at the next without waiting for it."""

    def __init__(self, orders: BinaryIO) -> None:
        self._orders = orders
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_over = False

    def take(self) -> dict[str, Any] | None:
        """Wait for the next order and return it; None after the last."""
        while not self._lines and not self._is_over:
            self._read()
        return json.loads(self._lines.popleft()) if self._lines else None

    def take_of_this_job(self, *, waits: bool) -> dict[str, Any] | None:
        """Return the next order of the job under way; None if there is none, or none yet."""
        while not self._lines and not self._is_over:
            if not waits and not select.select([self._orders], [], [], 0)[0]:
                break
            self._read()
        if not self._lines or "settings" in (order := json.loads(self._lines[0])):
            return None
        self._lines.popleft()
        return order  # type: ignore[no-any-return]

    def _read(self) -> None:
        data = os.read(self._orders.fileno(), 1 << 16)
        self._is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(lines)


def _answer_all(orders: _Arriving, task: Task) -> Iterator[Answer]:
    """Answer one order after the other; what the next one needs is read meanwhile."""
    order = orders.take_of_this_job(waits=True)
    waiting = None if order is None else task.prepare(order)
    while waiting is not None:
        order = orders.take_of_this_job(waits=False)
        following = None if order is None else task.prepare(order)
        yield waiting()
        if following is None:
            order = orders.take_of_this_job(waits=True)
            following = None if order is None else task.prepare(order)
        waiting = following


def warm_up(device: Any) -> None:
    """Let torch set up what every process sets up once, so that no call has to pay for it."""
    import torch

    for place in {torch.device("cpu"), device}:
        rows = torch.ones(4, 4, device=place, requires_grad=True)
        # With a gradient that is given: the first of those imports a good deal.
        torch.autograd.grad(rows @ rows, rows, torch.ones(4, 4, device=place))


def _say(answers: TextIO, message: Answer) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
