"""Signals, failures and limits in the middle of what torch's threads write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from kept_runs import calls_of, every_core, records_of
from pool_files import PoolFiles, has_compiled_pool
from torch import nn

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.host_write_pool import find_region
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.transport import TensorTransport
from tensorprobe.store.pending_file import PendingFile
from tensorprobe.system.interrupts import uninterrupted

__all__ = ["every_core"]

pytestmark = pytest.mark.skipif(not has_compiled_pool(), reason="nothing is compiled here")


INTERRUPTED = """
import signal, sys, torch
from torch import nn
from tensorprobe.capture import PrecisionDebugger
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(40)])
debugger = PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="mix")
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    for _ in range(100):
        debugger.start(model)
        model(torch.randn(512, 512)).sum().backward()
        debugger.stop()
        debugger.step()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("seconds", [0.05, 0.11, 0.2])
def test_ctrl_c_leaves_whole_files_alone(tmp_path: Path, seconds: float) -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "interrupted", run.stderr
    for path in tmp_path.rglob("*.pt"):
        assert torch.load(path, weights_only=True) is not None
    assert not list(tmp_path.rglob(".tmp*"))


class Doubled(nn.Module):
    """Takes a list and returns one."""

    def forward(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor * 2 for tensor in tensors]


@contextmanager
def signal_at_call(function: Callable[..., Any], number: int, signum: int) -> Iterator[None]:
    """Have a signal come when a function is called for so many times."""
    left = number

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event == "call" and frame.f_code is function.__code__:
            left -= 1
            if not left:
                signal.raise_signal(signum)

    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        assert left <= 0


def test_calls_after_an_interrupted_one_are_recorded(tmp_path: Path) -> None:
    model = Doubled()
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0")
    debugger.start(model)
    with (
        pytest.raises(KeyboardInterrupt),
        signal_at_call(PendingFile.end, 3, signal.SIGINT),
    ):
        model([torch.ones(100, 100) for _ in range(6)])
    for _ in range(2):
        model([torch.ones(100, 100) for _ in range(6)])
    debugger.stop()
    debugger.step()
    debugger.close()
    text = "".join(records_of(tmp_path))
    assert text.count('"data_name"') == 24
    assert "forward.1" in text and "forward.2" in text
    assert not list(tmp_path.rglob(".tmp*"))


@pytest.mark.parametrize(
    "moment",
    [Recorder._add, TensorTransport.borrow, TensorTransport.writes_aside, PendingFile.end],
)
@pytest.mark.parametrize("number", [1, 4, 9])
def test_a_capture_that_a_signal_ends_in_the_middle_of_a_record(
    tmp_path: Path, moment: Callable[..., Any], number: int
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: debugger.stop())
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L1")
    try:
        debugger.start()
        with signal_at_call(moment, number, signal.SIGUSR1):
            x = torch.randn(300, 300)
            for _ in range(8):
                x = (x @ x).softmax(-1) + x.t()
    finally:
        signal.signal(signal.SIGUSR1, before)
    debugger.step()
    debugger.close()
    assert torch._C._len_torch_function_stack() == 0
    records = "".join(records_of(tmp_path))
    for call in calls_of(tmp_path)[0].values():
        for value in call["output"]:
            assert value["Max"] is not None
    for file in tmp_path.rglob("*.pt"):
        assert torch.load(file) is not None and file.name in records
    assert records.count("data_name") == len(list(tmp_path.rglob("*.pt")))
    assert not list(tmp_path.rglob(".tmp*"))
    assert not list(tmp_path.rglob("dump_error_info.log"))


class Lazy(dict[str, torch.Tensor]):
    """Calls a module that writes into its input when somebody looks at what it holds."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__(a=torch.ones(2))
        self._act = act

    def items(self) -> Any:
        self._act(torch.full((100_000,), -1.0))
        return super().items()


class LooksLater(nn.Module):
    """Returns a large tensor, which is written while the other value is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Lazy]:
        return x * 2, Lazy(self.act)


def test_a_call_made_while_a_record_is_made_has_its_own_data(tmp_path: Path) -> None:
    model = LooksLater()
    with PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0") as debugger:
        debugger.start(model)
        for _ in range(3):
            model(torch.randn(100_000))
    calls = calls_of(tmp_path)[0]
    inside = [name for name in calls if name.startswith("Module.act.ReLU.forward")]
    assert len(inside) > 2
    for name in inside:
        (value,) = calls[name]["input_args"]
        (file,) = tmp_path.rglob(value["data_name"])
        assert float(value["Max"]) == -1
        assert torch.equal(torch.load(file), torch.full((100_000,), -1.0))


class Wordless:
    """Has no words for itself."""

    def __str__(self) -> str:
        raise ValueError("no words for this key")

    __repr__ = __str__


class Unrecordable(nn.Module):
    """Returns a large tensor, and a dict that cannot be described."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[Wordless, int]]:
        return x.repeat(40_000), {Wordless(): 1}


def test_a_record_that_cannot_be_made_costs_no_other_its_files(tmp_path: Path) -> None:
    first, second = nn.Identity(), Unrecordable()
    with PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0"):
        first(torch.randn(400_000))
        second(torch.ones(10))
        first(torch.randn(300_000))
    calls = calls_of(tmp_path)[0]
    assert not any("Unrecordable" in name for name in calls)
    for number in range(2):
        call = calls[f"Module.Identity.forward.{number}"]
        for value in (*call["input_args"], *call["output"]):
            assert len(list(tmp_path.rglob(value["data_name"]))) == 1
    assert not list(tmp_path.rglob(".tmp*"))


def test_ctrl_c_is_heard_while_a_record_that_cannot_be_made_is(tmp_path: Path) -> None:
    model = Unrecordable()
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0")
    debugger.start(model)
    # The second time, the data of its result are written, and the record has failed.
    with (
        pytest.raises(KeyboardInterrupt),
        signal_at_call(uninterrupted.__exit__, 2, signal.SIGINT),
    ):
        model(torch.ones(10))
    debugger.close()


def test_a_chore_that_fails_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    files = PoolFiles(tmp_path, region=0)

    def fail() -> None:
        raise ValueError("no room")

    files.pool.defer(fail)
    assert files.write("a", 800_000).is_done
    text = "what was to be done while files are written: no room"
    assert files.failures == [text] and (tmp_path / "a").stat().st_size == 800_000


def test_no_memory_for_a_copy_costs_no_file(tmp_path: Path) -> None:
    def borrow(size: int) -> None:
        raise MemoryError

    if not find_region():
        pytest.skip("one thread writes one file after the other")
    files = PoolFiles(tmp_path, borrow)
    with pytest.raises(MemoryError):
        files.write("a", 800_000)
    second = files.promise("c")
    with pytest.raises(MemoryError), files.pool:
        file = files.begin("b", torch.randn(200_000))
        assert files.pool.link(second, file)
    files.pool.drain()
    assert second.data_name == "c" and (tmp_path / "c").samefile(tmp_path / "b")
    assert not files.failures and (tmp_path / "a").stat().st_size == 800_000


CROWDED = """
import os, resource, sys, time, torch
from tensorprobe.capture import PrecisionDebugger
debugger = PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="L1")
debugger.start()
# Until records are written, and the files that these go to are open.
while not os.path.exists(sys.argv[1] + "/step0/rank/stack.json.part"):
    torch.ones(400000) + 1
    time.sleep(0.03)
count, free = len(os.listdir("/proc/self/fd")), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + free + 20, 4096))
held = []
try:
    while True:
        held.append(os.open("/dev/null", 0))
except OSError:
    for descriptor in held[-free:]:
        os.close(descriptor)
for size in (400000, 100000, 60000):
    torch.sin(torch.randn(size))
torch.unbind(torch.randn(8, 30000))
for descriptor in held[:-free]:
    os.close(descriptor)
debugger.stop()
debugger.step()
debugger.close()
"""


@pytest.mark.parametrize("free", [1, 3])
def test_few_files_that_may_be_open_cost_no_file(tmp_path: Path, free: int) -> None:
    subprocess.run([sys.executable, "-c", CROWDED, str(tmp_path), str(free)], check=True)
    values = [
        value
        for call in calls_of(tmp_path)[0].values()
        for value in (*call["input_args"], *call["output"])
        if value["type"] == "torch.Tensor"
    ]
    assert len(values) > 15
    for value in values:
        assert len(list(tmp_path.rglob(value["data_name"]))) == 1
    # Other files than those of tensors may find no room for a while.
    for log in tmp_path.rglob("dump_error_info.log"):
        assert "the data of" not in log.read_text()


@pytest.mark.parametrize("number", range(1, 12))
def test_an_interrupt_costs_no_call_its_files_that_is_over(tmp_path: Path, number: int) -> None:
    done = 0
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L1")
    debugger.start()
    x = torch.randn(100_000)
    with (
        pytest.raises(KeyboardInterrupt),
        signal_at_call(PendingFile.end, number, signal.SIGINT),
    ):
        for size in range(50_000, 100_000, 1000):
            torch.cos(x[:size])
            done += 1
    debugger.stop()
    debugger.step()
    debugger.close()
    calls = calls_of(tmp_path)[0]
    for finished in range(done):
        call = calls[f"Torch.cos.{finished}.forward"]
        for value in (*call["input_args"], *call["output"]):
            assert len(list(tmp_path.rglob(value["data_name"]))) == 1
    assert not list(tmp_path.rglob(".tmp*"))
