"""A process that checks calls for another: it may die or hang, and only its call is lost.

    python -m tensorprobe.precheck.worker READ WRITE

`serve` is the loop of every such process, whatever it does with a call.

Two pipes carry JSON lines. In: one line of settings, then names. Out: `{"ready": true, …}` with the
device or `{"failed": …}`, then a line for each name, and `{"bye": true}` before it ends by itself.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from tensorprobe.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tensorprobe.store import RankDump

__all__ = ["Task", "serve", "warm_up"]

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does with its orders.

    Attributes:
        prepare: given an order, returns what answers it; that is called when its turn has come.
        is_alive: whether the next order can be taken; after some errors a device never answers.
        device: the one that it opened, in words.
    """

    prepare: Callable[[dict[str, str]], Callable[[], Answer]]
    is_alive: Callable[[], bool]
    device: str = ""


def serve(make_task: Callable[[dict[str, Any]], Task]) -> None:
    """Answer orders until there are no more or the device is lost.

    Args:
        make_task: given the settings, returns what is done with an order.
    """
    read_end, write_end = int(sys.argv[1]), int(sys.argv[2])
    with (
        os.fdopen(read_end, "rb", buffering=0) as orders,
        os.fdopen(write_end, "w") as answers,
    ):
        settings = json.loads(orders.readline() or "null")
        if settings is None:
            return
        # After the first line, so that whoever started us need not wait for torch.
        from tensorprobe.errors import TensorprobeError

        try:
            task = make_task(settings)
        except (TensorprobeError, RuntimeError, ImportError) as err:
            _say(answers, {"failed": f"{err}", "kind": type(err).__name__})
            return
        # Torch's half a million objects stay; looking through them again and again takes time.
        gc.freeze()
        _say(answers, {"ready": True, "device": task.device})
        for answer in _answer_all(_Arriving(orders), task):
            _say(answers, answer)
            if not task.is_alive():
                break
        _say(answers, {"bye": True})


class _Arriving:
    """Orders as they come; one can look at the next without waiting for it."""

    def __init__(self, orders: BinaryIO) -> None:
        self._orders = orders
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_over = False

    def take(self) -> dict[str, str] | None:
        """Wait for the next order and return it; None after the last."""
        while not self._lines and not self._is_over:
            self._read()
        return json.loads(self._lines.popleft()) if self._lines else None

    def take_arrived(self) -> dict[str, str] | None:
        """Return the next order if it is there; None if one would have to wait for it."""
        while not self._lines and not self._is_over:
            if not select.select([self._orders], [], [], 0)[0]:
                break
            self._read()
        return json.loads(self._lines.popleft()) if self._lines else None

    def _read(self) -> None:
        data = os.read(self._orders.fileno(), 1 << 16)
        self._is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(lines)


def _answer_all(orders: _Arriving, task: Task) -> Iterator[Answer]:
    """Answer one order after the other; what the next one needs is read meanwhile."""
    order = orders.take()
    waiting = None if order is None else task.prepare(order)
    while waiting is not None:
        order = orders.take_arrived()
        following = None if order is None else task.prepare(order)
        yield waiting()
        if following is None:
            order = orders.take()
            following = None if order is None else task.prepare(order)
        waiting = following


def _check_calls(settings: dict[str, Any]) -> Task:
    import torch

    from tensorprobe.precheck.checker import Checker
    from tensorprobe.precheck.devices import describe_device, open_device
    from tensorprobe.precheck.outcome import CallResult
    from tensorprobe.precheck.rebuild import import_modules
    from tensorprobe.store import open_dump

    torch.set_num_threads(settings["threads"])
    import_modules(tuple(settings["imports"]))
    device = open_device(settings["device"])
    if settings["jit_compile"] is not None and device.type == "npu":
        # The switch of that device's own compiler; it must be as it was while training.
        accelerator: Any = torch.npu  # type: ignore[attr-defined]
        accelerator.set_compile_mode(jit_compile=settings["jit_compile"])
    warm_up(device)
    reader = ThreadPool(1)
    parts = {str(part.path): part for part in open_dump(settings["dump"]).parts}

    def errors_of(part: RankDump) -> Path | None:
        """Return where failing calls of a part are kept: each part of several has a folder."""
        if settings["save_errors"] is None:
            return None
        folder = Path(settings["save_errors"])
        return folder / part.label.replace("/", "_") if len(parts) > 1 else folder

    checkers = {
        path: Checker(
            part,
            device,
            settings["data"],
            settings["seed"],
            errors_of(part),
            tuple(settings["imports"]),
        )
        for path, part in parts.items()
    }

    told = dict.fromkeys(parts, 0)

    def prepare(order: dict[str, str]) -> Callable[[], Answer]:
        checker = checkers[order["part"]]
        prepared = checker.prepare(order["name"])
        if order["loss"]:
            return lambda: checker.keep(prepared, order["loss"]).as_json()
        prepared.read_ahead(reader)

        def check_it() -> Answer:
            try:
                result = checker.check(prepared)
            except Exception as err:  # noqa: BLE001 - it becomes the call's verdict
                text = f"the check itself failed: {type(err).__name__}: {err}"
                result = CallResult(order["name"], "SKIP", message=text)
            # Said once, whichever call came upon it.
            gaps = checker.part.known_gaps
            unread = tuple(gap.problem for gap in gaps[told[order["part"]] :])
            told[order["part"]] = len(gaps)
            return replace(result, unread=unread).as_json()

        return check_it

    def is_alive() -> bool:
        """Whether the device still answers; after some errors it never does again."""
        module: Any = getattr(torch, device.type, None)
        if device.type == "cpu" or not hasattr(module, "synchronize"):
            return True
        try:
            module.synchronize(device)
        except RuntimeError:
            return False
        return True

    return Task(prepare, is_alive, describe_device(device))


def warm_up(device: Any) -> None:
    """Let torch set up what every process sets up once, so that no call has to pay for it."""
    import torch

    for place in {torch.device("cpu"), device}:
        rows = torch.ones(4, 4, device=place, requires_grad=True)
        # With a gradient that is given: the first of those imports a good deal.
        torch.autograd.grad(rows @ rows, rows, torch.ones(4, 4, device=place))


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    serve(_check_calls)
