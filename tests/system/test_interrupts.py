"""An interrupt may come at any moment: nobody waits for ever, and nothing hidden stays."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tensorprobe.system.interrupts import is_raised_by_handler, uninterrupted

# Each is interrupted at moments of its own. The timer stands for Ctrl-C, which no test can aim.
START = """
import random, signal, sys
from pathlib import Path
from typing import Any

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
moments = random.Random(1)
interrupted = 0

def interrupt_soon(longest):
    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-4, longest))
"""
THREADS = """
from tensorprobe.system.thread_pool import ThreadPool

for _ in range(200):
    try:
        interrupt_soon(5e-3)
        with ThreadPool(2) as pool:
            while True:
                assert list(pool.map(sum, [range(200), range(3), range(100)]))[1] == 3
    except KeyboardInterrupt:
        interrupted += 1
"""
JOBS = """
from functools import partial
from tensorprobe.store.background import BackgroundWriter, BufferPool

for _ in range(200):
    pool = BufferPool(4096)
    writer = BackgroundWriter()
    done, asked = [], 0

    def job(buffer, pool=pool, done=done):
        done.append(buffer)
        pool.give(buffer)

    try:
        interrupt_soon(5e-3)
        while True:
            buffer = pool.take(4096, wait=True)
            writer.submit(partial(job, buffer))
            asked += 1
    except KeyboardInterrupt:
        interrupted += 1
    writer.drain()
    # The interrupt may come when a job was begun and not yet counted.
    assert len(done) in (asked, asked + 1), (len(done), asked)
"""
FILES = """
import os
from tensorprobe.system.new_file import new_file

folder = Path(sys.argv[1])
for number in range(400):
    try:
        interrupt_soon(1e-3)
        while True:
            with new_file(folder / f"{number}.txt") as descriptor:
                os.write(descriptor, b"whole")
    except KeyboardInterrupt:
        interrupted += 1
assert {file.read_text() for file in folder.iterdir()} == {"whole"}
assert not [file.name for file in folder.iterdir() if file.suffix != ".txt"]
"""
CAPTURE = """
import time
import torch
from tensorprobe import PrecisionDebugger, open_dump

model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(20)])
expected, whole = None, 0.0
for number in range(80):
    folder = Path(sys.argv[1], str(number))
    debugger = PrecisionDebugger(dump_path=folder, level="mix", task="statistics")
    debugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    try:
        # The first one is whole, and shows what the others have to hold and how long that takes.
        if expected is not None:
            interrupt_soon(whole)
        began = time.perf_counter()
        debugger.stop()
        debugger.step()
        whole = time.perf_counter() - began
        # In here: one that came just before would be nobody's.
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    debugger.close()
    (part,) = open_dump(folder).parts
    names = list(part.names)
    assert names == (expected or names) and not part.gaps, (number, len(names), part.gaps)
    files = sorted(file.name for file in (folder / "step0" / "rank").iterdir())
    assert files == ["construct.json", "dump.json", "stack.json"], (number, files)
    expected = names
"""


@pytest.mark.parametrize(
    ("program", "least"),
    [(THREADS, 200), (JOBS, 200), (FILES, 400), (CAPTURE, 40)],
    ids=["threads", "jobs", "files", "capture"],
)
def test_interrupts_at_any_moment(program: str, least: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{START}{program}\nprint(interrupted)", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least


def fail(*_: object) -> None:
    raise ValueError


class Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.raise_it(number, frame)

    def raise_it(self, number: int, frame: FrameType | None) -> None:
        raise ValueError(number)


@pytest.mark.parametrize(
    "handler",
    [fail, Handler(), Handler().raise_it, functools.partial(fail, "more"), lambda *_: fail()],
    ids=["function", "object", "method", "partial", "one that calls another"],
)
@pytest.mark.parametrize(
    "block", [uninterrupted, contextlib.nullcontext], ids=["put off", "at once"]
)
def test_what_a_handler_raises_is_told_from_other_exceptions(
    handler: Callable[..., None], block: Callable[[], AbstractContextManager[None]]
) -> None:
    def work() -> None:
        with block():
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(ValueError) as of_handler:
            work()
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ValueError) as of_work:
        fail(signal.SIGALRM, None)
    assert is_raised_by_handler(of_handler.value)
    assert not is_raised_by_handler(of_work.value)


def forget(number: int, frame: object) -> None:
    del number, frame
    raise ValueError


def climb(number: int, frame: Any) -> None:
    while frame is not None:
        frame = frame.f_back
    fail()


@pytest.mark.parametrize("handler", [forget, climb])
def test_a_handler_is_known_that_has_let_go_of_what_it_was_given(
    handler: Callable[..., None],
) -> None:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(ValueError) as raised:
            signal.raise_signal(signal.SIGALRM)
        assert is_raised_by_handler(raised.value)
    finally:
        signal.signal(signal.SIGALRM, before)
