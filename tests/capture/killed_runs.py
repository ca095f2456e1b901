"""Trainings that are killed at a random moment, and what their dumps lack of the calls before it.

    python killed_runs.py [KILLS [SEED]]     many of them, over tasks, levels and ranks

A training says on a pipe, after each call that it makes, that the call is over. A run that nobody
kills tells which calls are to be recorded by then, so that what was said last tells what a dump
must hold.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tensorprobe.store import Dump, open_dump

__all__ = ["LEVELS", "TASKS", "Killed", "Whole", "finish_run", "kill_run"]

_Child = subprocess.Popen[bytes]

TASKS = ("statistics", "tensor")
LEVELS = ("L0", "L1", "mix", "L2")

# What is said has ended, forwards; backwards a hook of a tensor is told before the node behind it.
TRAINING = """
import os, sys, time
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
import torch
from torch import nn
from torch.nn import functional
from tensorprobe import PrecisionDebugger

folder, task, level, steps, rank, store = sys.argv[1:7]
if store:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(store, 2), rank=int(rank), world_size=2
    )
torch.manual_seed(0)
recorded, by_then = [], []

def say():
    os.write(1, b"x")
    by_then.append(len(recorded))

def said(gradient):
    say()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        y = self.up(x)
        say()
        y = functional.gelu(y)
        say()
        y = self.down(y)
        say()
        if store:
            total = y.detach().clone()
            torch.distributed.all_reduce(total)
            say()
        y = functional.softmax(x + y, dim=-1)
        y.register_hook(said)
        say()
        return y

if steps == "1":
    from tensorprobe.capture.recorder import Recorder
    add = Recorder._add

    def add_and_count(self, record):
        recorded.append(record.name)
        add(self, record)

    Recorder._add = add_and_count

model = nn.Sequential(*(Block() for _ in range(12)))
batch = torch.randn(256, 64)
debugger = PrecisionDebugger(dump_path=folder, task=task, level=level)
os.write(1, b"begun\\n")
for step in range(int(steps)):
    debugger.start(model)
    model.zero_grad()
    loss = model(batch).square().mean()
    say()
    loss.backward()
    say()
    debugger.stop()
    say()
    debugger.step()
    os.write(1, b"\\n")
debugger.close()
if steps == "1":
    print("told", *by_then)
"""


class Whole(NamedTuple):
    """One rank of a training that nobody killed.

    Attributes:
        names: the calls of a step.
        by_then: how many of them were to be recorded whenever the training said something.
    """

    names: list[str]
    by_then: list[int]


class Killed(NamedTuple):
    """One rank of a training that was killed.

    Attributes:
        names: the calls in the dump of the step that was running.
        said: how often the training had said in that step that something is over.
        gaps: what the dump says that it lacks.
        earlier: how many calls the steps before it hold.
    """

    names: list[str]
    said: int
    gaps: list[str]
    earlier: list[int]

    def lost(self, whole: Whole) -> int:
        """Return how many calls had finished and have no record."""
        assert self.names == whole.names[: len(self.names)], "no true beginning of the step"
        assert self.earlier == [len(whole.names)] * len(self.earlier), "an earlier step was lost"
        return max(0, (whole.by_then[self.said - 1] if self.said else 0) - len(self.names))


def start(folder: Path, task: str, level: str, *, steps: int, ranks: int) -> list[_Child]:
    store = str(folder / "store") if ranks > 1 else ""
    folder.mkdir()
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-c", TRAINING, str(folder / "dump"), task, level),
                *(str(steps), str(rank), store),
            ],
            stdout=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]


def finish_run(folder: Path, task: str, level: str, *, ranks: int = 1) -> list[Whole]:
    """Let each rank finish one step."""
    said = [
        child.communicate(timeout=120)[0]
        for child in start(folder, task, level, steps=1, ranks=ranks)
    ]
    told = [[int(word) for word in text.rpartition(b"told")[2].split()] for text in said]
    names = [[call.name for call in part] for part in open_dump(folder / "dump").parts]
    return [Whole(*one) for one in zip(names, told, strict=True)]


def kill_run(
    folder: Path, task: str, level: str, chance: random.Random, *, ranks: int = 1
) -> list[Killed]:
    """Kill all ranks of a training, some time after its second step."""
    children = start(folder, task, level, steps=1000, ranks=ranks)
    said = [b"" for _ in children]
    assert children[0].stdout is not None
    times = []
    while len(times) < 3:
        said[0] += os.read(children[0].stdout.fileno(), 1 << 16)
        times += [time.monotonic()] * (said[0].count(b"\n") - len(times))
    time.sleep(chance.uniform(0, 2 * (times[2] - times[1])))
    for child in children:
        child.kill()
    for rank, child in enumerate(children):
        said[rank] += child.communicate(timeout=60)[0]
    dump = open_dump(folder / "dump")
    return [_look_at(dump, rank, said[rank].split(b"\n")) for rank in range(ranks)]


def _look_at(dump: Dump, rank: int, said: list[bytes]) -> Killed:
    # The first line says that all begins.
    step = len(said) - 2
    parts = {part.info.step: part for part in dump.parts if (part.info.rank or 0) == rank}
    part = parts.get(step)
    names = [] if part is None else [call.name for call in part]
    gaps = [] if part is None else [gap.problem for gap in part.gaps]
    # While its end is written, a step is over and has not said so.
    earlier = [len(parts[number]) for number in range(step)]
    return Killed(names, len(said[-1]), gaps, earlier)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    chance = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    ways = [(task, level, ranks) for ranks in (1, 2) for task in TASKS for level in LEVELS]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        wholes = {}
        losses: list[int] = []
        for number in range(kills):
            way = task, level, ranks = ways[number % len(ways)]
            if way not in wholes:
                wholes[way] = finish_run(folder / f"whole{number}", task, level, ranks=ranks)
            killed = kill_run(folder / str(number), task, level, chance, ranks=ranks)
            for one, whole in zip(killed, wholes[way], strict=True):
                losses.append(one.lost(whole))
                unwritten = sum("had not been written" in gap for gap in one.gaps)
                sys.stdout.write(
                    f"{task:10} {level:3} of {ranks}: {len(one.names):3} of {len(whole.names)} "
                    f"calls, {losses[-1]} lost, {unwritten} values without their data\n"
                )
    sys.stdout.write(f"{kills} kills, {len(losses)} ranks: {max(losses)} calls lost at most\n")


if __name__ == "__main__":
    main()
