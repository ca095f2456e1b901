"""Where no address space is left for a thread, its work is done by the caller, and nobody waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from warm_python import run_warm

pytest.importorskip("resource")

# A thread whose stack finds room and nothing else does never says that it runs.
LIMIT = """
import resource, sys

def leave(megabytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""
POOL = (
    LIMIT
    + """
import threading
from tensorprobe.store.unfinished import Finisher
from tensorprobe.system.thread_pool import ThreadPool
leave(12)
done = []
with ThreadPool(2) as pool:
    assert [pool.submit(pow, 2, n).result() for n in range(3)] == [1, 2, 4]
    assert threading.active_count() == 1
finisher = Finisher()
finisher.do(lambda: done.append(1))
finisher.do(lambda: done.append(2))
assert done == [1, 2] and threading.active_count() == 1
finisher.wait()
"""
)
TRAINING = (
    LIMIT
    + """
import os
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
import torch
from torch import nn
from tensorprobe import PrecisionDebugger
# Data are written by a thread of our own.
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
model(torch.ones(8, 64)).sum().backward()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix")
leave(int(sys.argv[3]))
debugger.start(model)
model(torch.ones(8, 64)).sum().backward()
try:
    # No more than the run itself has asked for.
    model(torch.ones(1 << 20, 64))
except RuntimeError as err:
    assert "allocate" in str(err), err
    print("raised as without us")
debugger.stop()
debugger.step()
"""
)


def test_the_caller_does_what_no_thread_can_do() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", POOL], capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("megabytes", [4, 10, 20])
def test_a_capture_without_memory_raises_what_the_run_raises(
    tmp_path: Path, task: str, megabytes: int
) -> None:
    answer = run_warm(TRAINING, tmp_path, task, megabytes, check=True)
    assert "raised as without us" in answer.stdout
