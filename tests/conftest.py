"""Shared ground of all tests."""

from __future__ import annotations

import os

# Some processors announce AMX and stop a process that uses it; torch must not find out.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Threads of torch that wait for each other spin, on cores that other processes of tests need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import fcntl
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# A shell's background job is started with Ctrl-C ignored, and so would be all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TENSORPROBE_SHARED", REPOSITORY.parent / "shared"))
DATA = Path(__file__).parent / "data"


def peer_root() -> Path:
    """The folder with every dump of the older tools, or with the few that the repository holds."""
    everything = SHARED / "peer_dumps"
    return everything if everything.is_dir() else DATA / "peer_dumps"


@pytest.fixture
def peer_dumps() -> Path:
    return peer_root()


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a file that one of the processes that run the tests makes for all of them."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    path = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = shared / f"{name}.unfinished"
            make(unfinished)
            unfinished.rename(path)
    return path


@pytest.fixture
def must_end() -> Iterator[None]:
    """Make a test that would wait or count for ever a test that fails, and says where it stood."""

    def fail(_number: int, _frame: object) -> None:
        raise AssertionError("this does not end")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _no_debugger_stays() -> Iterator[None]:
    """Every test ends without a capture that goes on."""
    yield
    module = sys.modules.get("tensorprobe.capture.current")
    if module is not None and (debugger := module.current_debugger()) is not None:
        debugger.close()
