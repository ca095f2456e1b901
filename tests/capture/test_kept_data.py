"""Task tensor: a record names only files that are there, and a file holds what the call saw."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import TensorValue
from warm_python import run_warm


def make_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"task": "tensor", "tensor": fields}))
    return path


def data_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        path.stem: torch.load(path, weights_only=True)
        for path in folder.rglob("dump_tensor_data/*.pt")
    }


@pytest.mark.parametrize("budget", [1, 512])
def test_in_place_calls_do_not_change_what_was_kept_before(tmp_path: Path, budget: int) -> None:
    debugger = PrecisionDebugger(
        make_config(tmp_path, memory_budget=budget), dump_path=tmp_path / "dump"
    )
    x = torch.full((512, 512), -2.0)
    debugger.start()
    for _ in range(20):
        x.add_(1)
        x.mul_(2)
    debugger.stop()
    debugger.step()
    debugger.close()
    data = data_of(tmp_path)
    value = -2.0
    for number in range(20):
        assert (data[f"Tensor.add_.{number}.forward.input.0"] == value).all()
        value += 1
        assert (data[f"Tensor.add_.{number}.forward.output.0"] == value).all()
        value *= 2
        assert (data[f"Tensor.mul_.{number}.forward.output.0"] == value).all()


def test_the_same_bytes_under_several_names_are_one_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path, level="mix")
    debugger.start(model)
    model(torch.randn(16, 64)).sum().backward()
    debugger.stop()
    debugger.close()
    part = open_dump(tmp_path).parts[0]
    folder = tmp_path / "step0" / "rank" / "dump_tensor_data"
    one = (folder / "Module.0.Linear.forward.0.output.0.pt").stat().st_ino
    for name in ("Functional.linear.0.forward.output.0", "Module.1.ReLU.forward.0.input.0"):
        assert (folder / f"{name}.pt").stat().st_ino == one
    for call in part:
        for leaf in call.leaves():
            if isinstance(leaf.value, TensorValue):
                assert part.load(leaf.value).shape == leaf.value.shape
    assert part.gaps == ()


def test_a_view_of_kept_memory_has_a_file_with_its_own_shape(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(task="tensor", dump_path=tmp_path)
    x = torch.arange(12.0)
    debugger.start()
    y = torch.reshape(x, (3, 4))
    torch.relu(torch.transpose(y, 0, 1))
    debugger.stop()
    debugger.close()
    data = data_of(tmp_path)
    assert torch.equal(data["Torch.reshape.0.forward.input.0"], x)
    assert torch.equal(data["Torch.reshape.0.forward.output.0"], y)
    assert torch.equal(data["Torch.relu.0.forward.input.0"], y.t())


def test_a_conjugate_view_has_a_file_of_its_own(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(
        make_config(tmp_path, summary_mode="md5"), dump_path=tmp_path / "dump"
    )
    x = torch.tensor([1 + 2j, 3 - 4j])
    debugger.start()
    torch.abs(torch.conj(x))
    debugger.stop()
    debugger.close()
    data = data_of(tmp_path)
    assert torch.equal(data["Torch.conj.0.forward.input.0"], x)
    assert torch.equal(data["Torch.abs.0.forward.input.0"], x.conj().resolve_conj())
    sums = {
        leaf.name: leaf.value.checksum
        for call in open_dump(tmp_path / "dump")
        for leaf in call.leaves()
        if isinstance(leaf.value, TensorValue)
    }
    assert sums["Torch.conj.0.forward.input.0"] != sums["Torch.abs.0.forward.input.0"]


TRAIN = """
import sys
import torch
from torch import nn
from tensorprobe import PrecisionDebugger

model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
debugger = PrecisionDebugger(task="tensor", dump_path=sys.argv[1], level="mix")
"""

FULL_DISK = (
    "import resource\n"
    + TRAIN
    + """
limit = 100_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
debugger.start(model)
model(torch.randn(8, 256)).sum().backward()
debugger.stop()
debugger.step()
"""
)


def test_data_that_cannot_be_written_are_null_in_their_records(tmp_path: Path) -> None:
    answer = run_warm(FULL_DISK, tmp_path, check=True)
    # Told once; the files that fit are there, the weights of 256 KB are not.
    assert answer.stderr.count("could not be written") == 1
    part = open_dump(tmp_path).parts[0]
    values = [
        leaf.value for call in part for leaf in call.leaves() if isinstance(leaf.value, TensorValue)
    ]
    lost = [value for value in values if value.data_name is None]
    assert {value.shape for value in lost} == {(256, 256)}
    assert len(values) > len(lost) > 4
    for value in values:
        if value.data_name is not None:
            assert part.load(value).shape == value.shape
    assert sum("could not be written" in gap.problem for gap in part.gaps) >= len(lost)
    assert not list(tmp_path.rglob(".tmp-*"))


FOR_EVER = (
    TRAIN
    + """
print("ready", flush=True)
while True:
    debugger.start(model)
    for _ in range(3):
        model(torch.randn(512, 256)).sum().backward()
    debugger.stop()
    debugger.step()
"""
)


@pytest.mark.parametrize("delay", [0.05, 0.5])
def test_a_killed_run_names_no_file_that_is_not_whole(tmp_path: Path, delay: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(delay)
        child.kill()
    for path in tmp_path.rglob("dump_tensor_data/*.pt"):
        torch.load(path, weights_only=True)
    if not list(tmp_path.rglob("dump.json*")):
        return
    for part in open_dump(tmp_path).parts:
        missing = 0
        for call in part:
            for leaf in call.leaves():
                if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                    assert part.load(leaf.value).shape == leaf.value.shape
                missing += isinstance(leaf.value, TensorValue) and leaf.value.data_name is None
        assert missing == sum("had not been written" in gap.problem for gap in part.gaps)


def test_ctrl_c_ends_the_run_and_leaves_whole_dumps(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOR_EVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where signals are ignored in the background, a child would ignore them too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode != 0 and b"KeyboardInterrupt" in errors
    dumps = open_dump(tmp_path)
    for part in dumps.parts:
        for call in part:
            for leaf in call.leaves():
                if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                    assert part.load(leaf.value).shape == leaf.value.shape
    assert not list(tmp_path.rglob("*.part"))


FORK = (
    "import os\n"
    + TRAIN
    + """
debugger.start(model)
for _ in range(3):
    model(torch.randn(512, 256)).sum().backward()
    child = os.fork()
    if child == 0:
        # Ends as a program does, with its atexit handlers.
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
debugger.stop()
debugger.step()
"""
)


def test_a_fork_in_the_middle_of_a_step_disturbs_nothing(tmp_path: Path) -> None:
    run_warm("import torch\ntorch.set_num_threads(1)\n" + FORK, tmp_path, check=True)
    dump = open_dump(tmp_path)
    assert len(dump.parts) == 1 and dump.parts[0].gaps == ()
    for call in dump:
        for leaf in call.leaves():
            if isinstance(leaf.value, TensorValue):
                assert dump.parts[0].load(leaf.value).shape == leaf.value.shape
