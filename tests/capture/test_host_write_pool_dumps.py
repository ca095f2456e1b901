"""Torch's threads measure and write together what one thread would one after the other."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kept_runs import calls_of, every_core, records_of
from pool_files import has_compiled_pool
from torch import nn

from tensorprobe.capture import PrecisionDebugger, host_write_pool
from tensorprobe.system.cores import count_cores

__all__ = ["every_core"]

pytestmark = pytest.mark.skipif(not has_compiled_pool(), reason="nothing is compiled here")


class Model(nn.Module):
    """Parts of tensors, a parameter used twice, an in-place call, and a result without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 192)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = self.first(x).chunk(3, dim=-1)
        scores = (a @ b.transpose(-2, -1)).softmax(-1) @ c
        scores = self.second(self.second(scores).relu_()).t().contiguous()
        total: torch.Tensor = (scores * scores)[::2, ::3].sum()
        return total + x[:, :0].sum() + (x[0, :3] * 1e-320).sum()


def capture(folder: Path) -> None:
    torch.manual_seed(1)
    model = Model().double()
    debugger = PrecisionDebugger(task="tensor", dump_path=folder, level="mix")
    for _ in range(2):
        debugger.start(model)
        model(torch.randn(128, 64).double()).backward()
        debugger.stop()
        debugger.step()
    debugger.close()


def contents_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix == ".pt"
    }


def capture_in_a_process(folder: Path, cores: str, *, is_compiled: bool) -> bool:
    """Capture with the cores that a process may use; returns whether it had a pool."""
    run = subprocess.run(
        [sys.executable, __file__, str(folder), cores],
        env={
            **{key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
            "TENSORPROBE_NO_KERNEL": "" if is_compiled else "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()[-1] == "has a pool: True"


@pytest.mark.parametrize("cores", ["all", "one"])
def test_a_dump_is_the_same_with_the_team_and_without(tmp_path: Path, cores: str) -> None:
    has_torch_threads = capture_in_a_process(tmp_path / "compiled", cores, is_compiled=True)
    capture_in_a_process(tmp_path / "python", cores, is_compiled=False)
    if cores == "all" and count_cores() > 1 and host_write_pool.find_region():
        assert has_torch_threads
    contents = contents_of(tmp_path / "python")
    assert len(contents) > 60
    assert contents_of(tmp_path / "compiled") == contents
    assert calls_of(tmp_path / "compiled") == calls_of(tmp_path / "python")
    assert not list(tmp_path.rglob(".tmp*"))


def test_a_name_that_cannot_be_given_is_lost_alone(tmp_path: Path) -> None:
    model = Model()
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="mix")
    debugger.start(model)
    data = tmp_path / "step0" / "rank" / "dump_tensor_data"
    # A folder stands where the file should.
    (data / "Functional.linear.1.forward.output.0.pt").mkdir(parents=True)
    model(torch.randn(128, 64)).backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    text = "".join(records_of(tmp_path))
    assert '"Functional.linear.1.forward"' in text
    assert '"Functional.linear.1.forward.output.0.pt"' not in text
    files = [path for path in data.iterdir() if path.is_file()]
    assert text.count('"data_name"') == len(files) > 60
    assert not list(tmp_path.rglob(".tmp*"))


LIMITED = """
import resource, sys, torch
from tensorprobe.capture import PrecisionDebugger
torch.ones(1 << 22).add(1)
debugger = PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="L1")
debugger.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
(torch.ones(300, 300) + 1) * torch.ones(2000, 1, 1).expand(2000, 3, 300)[:, :1]
debugger.stop()
debugger.step()
debugger.close()
"""


def test_a_file_that_cannot_be_written_is_lost_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], check=True)
    text = "".join(records_of(tmp_path))
    assert '"Tensor.__mul__.0.forward"' in text
    assert '"Tensor.__mul__.0.forward.output.0.pt"' not in text
    assert '"Tensor.__add__.0.forward.output.0.pt"' in text
    assert text.count('"data_name"') == len(list(tmp_path.rglob("*.pt")))
    assert not list(tmp_path.rglob(".tmp*"))


FORKED = """
import os, sys, torch
from tensorprobe.capture import PrecisionDebugger

def capture(folder):
    debugger = PrecisionDebugger(task="tensor", dump_path=folder, level="L1")
    debugger.start()
    # Too few elements for torch to use its threads.
    torch.ones(128, 256) + 1
    debugger.stop()
    debugger.step()
    debugger.close()

torch.ones(1 << 22).add(1)
capture(sys.argv[1] + "/parent")
child = os.fork()
if child == 0:
    capture(sys.argv[1] + "/child")
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_waits_for_no_thread(tmp_path: Path) -> None:
    # A child of a fork has none of its parent's threads.
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], check=True, timeout=120)
    for name in ("parent", "child"):
        found = [path.name for path in (tmp_path / name).rglob("*.pt")]
        assert "Tensor.__add__.0.forward.output.0.pt" in found


IMPORTED_LATER = """
import os, sys, torch
torch.ones(1 << 22).add(1)
child = os.fork()
if child == 0:
    from tensorprobe.capture import PrecisionDebugger
    debugger = PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="L1")
    debugger.start()
    torch.ones(128, 256) + 1
    debugger.stop()
    debugger.step()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_child_that_imports_us_after_the_fork_waits_for_no_thread(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", IMPORTED_LATER, str(tmp_path)], check=True, timeout=120)
    assert list(tmp_path.rglob("Tensor.__add__.0.forward.output.0.pt"))


FORKED_IN_A_STEP = """
import os, sys, torch
from tensorprobe.capture import PrecisionDebugger
torch.ones(1 << 22).add(1)
class Expand(torch.autograd.Function):
    @staticmethod
    def forward(context, weight):
        return weight[0].clone()
    @staticmethod
    def backward(context, gradient):
        # Large, and made without torch's threads.
        return torch.empty(100_000, 8)
model = torch.nn.Linear(8, 100_000, bias=False)
model.forward = lambda: Expand.apply(model.weight)
with PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="L0") as debugger:
    debugger.start(model)
    loss = model().sum()
    child = os.fork()
    if child == 0:
        loss.backward()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_child_forked_in_a_step_waits_for_no_thread(tmp_path: Path) -> None:
    # Its tensors are measured, though nothing of it is written.
    script = [sys.executable, "-c", FORKED_IN_A_STEP, str(tmp_path)]
    subprocess.run(script, check=True, timeout=60)
    assert list(tmp_path.rglob("*.pt"))


class Idle(nn.Module):
    """Calls a part that does nothing so often that records are written before their time."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4200):
            self.part(x)
        return x + 1


def test_thousands_of_records_name_their_files(tmp_path: Path) -> None:
    model = Idle()
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0")
    with debugger, torch.no_grad():
        debugger.start(model)
        model(torch.ones(200, 200))
    files = list(tmp_path.rglob("*.pt"))
    assert len(files) > 8400
    assert "".join(records_of(tmp_path)).count('"data_name"') == len(files)


class Chain(nn.Module):
    """Large results of which each is changed without anybody being told, as soon as it is there."""

    def forward(self, x: torch.Tensor) -> None:
        for number in range(12):
            result = x + number
            memory = (ctypes.c_char * result.nbytes).from_address(result.data_ptr())
            memory[:] = b"\xff" * result.nbytes


def test_the_data_are_those_of_the_moment(tmp_path: Path) -> None:
    x = torch.randn(300, 300)
    with PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L1") as debugger:
        debugger.start()
        Chain()(x)
    calls = calls_of(tmp_path)[0]
    for number in range(12):
        name = f"Tensor.__add__.{number}.forward"
        (file,) = tmp_path.rglob(f"{name}.output.0.pt")
        assert torch.equal(torch.load(file), x + number)
        assert calls[name]["output"][0]["data_name"] == file.name
        assert float(calls[name]["output"][0]["Max"]) == pytest.approx((x + number).max().item())


def test_a_file_that_comes_alone_is_written_with_the_next(tmp_path: Path) -> None:
    if not host_write_pool.find_region() or count_cores() == 1:
        pytest.skip("one thread writes one file after the other")
    torch.ones(1 << 22).add(1)
    files = tmp_path / "step0" / "rank" / "dump_tensor_data"
    x = torch.randn(300, 300)
    with PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L1"):
        x = x.cos()
        assert len(list(files.glob("*.pt"))) == 2
        x = x.cos()
        assert len(list(files.glob("*.output.*"))) == 1
        x.cos()
        assert len(list(files.glob("*.output.*"))) == 3
    assert len(list(files.glob("*.pt"))) == 6


class Named(nn.Module):
    """Returns tensors under names that are no text, or that JSON quotes."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"a\udc80": x + 1, 'é"\\': x + 2}


def test_files_of_any_name_are_named(tmp_path: Path) -> None:
    model = Named()
    with PrecisionDebugger(task="tensor", dump_path=tmp_path, level="L0") as debugger:
        debugger.start(model)
        model(torch.ones(20, 20))
    text = "".join(records_of(tmp_path))
    assert r'"Module.Named.forward.0.output.0.a\udc80.pt"' in text
    assert r'"Module.Named.forward.0.output.0.\u00e9\"\\.pt"' in text
    assert len(list(tmp_path.rglob("*.pt"))) == 3


if __name__ == "__main__":
    if sys.argv[2] == "one":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
    torch.ones(1 << 22).add(1)
    capture(Path(sys.argv[1]))
    sys.stdout.write(
        f"has a pool: {host_write_pool.has_torch_threads() and torch.get_num_threads() > 1}\n"
    )
