"""The same step captured by two tools: nobody is at fault, and the data are the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import REPOSITORY
from tensorprobe import DumpWriter, PrecisionDebugger, blame, compare, open_dump
from tensorprobe.blame.agreement import Meter
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.pairing.call_pairs import pair_calls
from tensorprobe.records import CallRecord, DumpInfo, TensorValue

PEERS = {
    "8.2.1": os.environ.get("TENSORPROBE_PEER_PYTHON", ""),
    "26.2.0": os.environ.get("TENSORPROBE_NEWER_PEER_PYTHON", ""),
}

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
tool, folder, level, task, fault = sys.argv[1:]
if tool == "tensorprobe":
    from tensorprobe.capture import PrecisionDebugger
else:
    from msprobe.pytorch import PrecisionDebugger

class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

class Faulty(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ == fault:
                result = torch.ops.aten.mul.Scalar(result, 1.01)
        return result

torch.manual_seed(0)
model = Model()
ids, targets = torch.randint(0, 50, (3, 7)), torch.randint(0, 50, (21,))
debugger = PrecisionDebugger(task=task, dump_path=folder, level=level)
debugger.start(model)
with Faulty():
    F.cross_entropy(model(ids).reshape(-1, 50), targets).backward()
debugger.stop()
debugger.step()
"""


def capture(python: str, tool: str, folder: Path, level: str, task: str, fault: str = "") -> Path:
    script = folder.with_suffix(".py")
    folder.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPT)
    answer = subprocess.run(
        [python, str(script), tool, str(folder), level, task, fault],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert answer.returncode == 0, answer.stderr
    return folder


def peer(version: str) -> str:
    if not PEERS[version]:
        pytest.skip(f"no Python with msprobe {version} is named")
    return PEERS[version]


@pytest.mark.peer
@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("version", PEERS)
def test_the_same_step_of_two_tools_has_no_culprit(
    tmp_path: Path, version: str, level: str, task: str
) -> None:
    ours = capture(peer(version), "tensorprobe", tmp_path / "ours", level, task)
    theirs = capture(peer(version), "msprobe", tmp_path / "theirs", level, task)
    for sides in ((ours, theirs), (theirs, ours)):
        conclusion = blame(*sides)
        assert conclusion.culprit is None, conclusion.summary
        assert conclusion.verdict in ("noise", "incomplete"), conclusion.summary
        assert conclusion.start.kind == "none"
        assert conclusion.calls > 30
        # With data everything that both recorded is bit for bit the same.
        assert not conclusion.differing or task == "statistics"


@pytest.mark.peer
@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("embedding", "Functional.embedding.0.forward"),
        ("gelu_backward", "Functional.gelu.2.backward"),
        # The tools record other gradients of this call; it shows where the next one is given them.
        ("_log_softmax_backward_data", "Functional.cross_entropy.0.backward"),
    ],
)
def test_a_fault_shows_across_tools(tmp_path: Path, fault: str, call: str, task: str) -> None:
    python = peer("8.2.1")
    ours = capture(python, "tensorprobe", tmp_path / "ours", "mix", task, fault)
    theirs = capture(python, "msprobe", tmp_path / "theirs", "mix", task)
    assert blame(ours, theirs).culprit == call


# --- without the other tool ---------------------------------------------------------------------


def as_msprobe(folder: Path) -> Path:
    """What our writer says of itself is all that tells the two apart."""
    path = next(folder.rglob("dump.json"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"tensorprobe":' not in line))
    assert open_dump(folder).parts[0].info.tool == "msprobe"
    return folder


def write(folder: Path, calls: list[CallRecord]) -> Path:
    with DumpWriter(folder, DumpInfo()) as writer:
        for call in calls:
            writer.write(call)
    return folder


def whole(mean: float | None, norm: float | None, dtype: str = "torch.int64") -> TensorValue:
    return TensorValue(dtype, (21,), 49, 0, mean, norm)


def distance(ours: Path, theirs: Path) -> float:
    sides = [RecordedRun(open_dump(path).parts[0]) for path in (ours, theirs)]
    (pair,) = pair_calls(*sides)
    (found,) = Meter(*sides).measure_calls([pair])[pair.name].inputs
    return found.value


def taking(value: TensorValue) -> list[CallRecord]:
    return [CallRecord("Torch.neg.0.forward", inputs=(value,), kwargs={}, outputs=())]


EXACT = whole(23.523809523809526, 133.62634470792054)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (whole(23.5238094329834, 133.6263427734375), True),
        (whole(None, None), True),
        (whole(23.571428571428573, 133.7), False),
        (whole(23.5238094329834, 133.9), False),
        (TensorValue("torch.int64", (21,), 48, 0, 23.5238094329834, 133.6263427734375), False),
    ],
)
def test_whole_numbers_agree_in_what_both_tools_record(
    tmp_path: Path, other: TensorValue, is_same: bool
) -> None:
    ours = write(tmp_path / "a", taking(EXACT))
    theirs = as_msprobe(write(tmp_path / "b", taking(other)))
    assert (distance(ours, theirs) == 0) == is_same
    assert (distance(theirs, ours) == 0) == is_same


def test_one_tool_rounds_a_mean_in_one_way(tmp_path: Path) -> None:
    """One label among millions moves the mean by no more than that."""
    ours = write(tmp_path / "a", taking(EXACT))
    theirs = write(tmp_path / "b", taking(whole(23.5238094329834, 133.62634470792054)))
    assert distance(ours, theirs) > 0


def numbers(size: float, *shape: int) -> TensorValue:
    return TensorValue("torch.float32", shape, size, -size, size / 8, size)


def test_gradients_of_something_inside_a_call_are_not_held_against_its_own(tmp_path: Path) -> None:
    loss = "Functional.cross_entropy.0"
    forward = CallRecord(
        f"{loss}.forward", inputs=(numbers(1, 21, 50), EXACT), kwargs={}, outputs=(numbers(4),)
    )

    def backward(size: float) -> CallRecord:
        return CallRecord(
            f"{loss}.backward", inputs=(numbers(1),), outputs=(numbers(size, 21, 50),)
        )

    ours = write(tmp_path / "a", [forward, backward(0.2)])
    theirs = as_msprobe(write(tmp_path / "b", [forward, backward(0.3)]))
    for sides in ((ours, theirs), (theirs, ours)):
        (result,) = compare(*sides, tmp_path / "out", formats=("csv",)).parts
        assert result.tally.failed == 0
        assert f"{loss}.backward.output.0: the two tools record other gradients of this call" in (
            result.unmatched
        )
        conclusion = blame(*sides)
        assert conclusion.verdict == "incomplete"
        assert conclusion.uncompared == (
            f"{loss}.backward.output.0: the two tools record other gradients of this call",
        )


class Forgetful(nn.Module):
    """A model of which one line may be forgotten, or one too many."""

    def __init__(self, *, squeezes: bool = True, detaches: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.squeezes, self.detaches = squeezes, detaches

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        inner = self.second(hidden)
        found = self.last(hidden.detach() + inner if self.detaches else hidden + inner)
        return ((found.squeeze(1) if self.squeezes else found) - target).square().mean()


def step_of(folder: Path, *, is_anothers: bool, **lines: bool) -> Path:
    """Capture a step, and hide which tool has written it if it is to be another's."""
    torch.manual_seed(0)
    model = Forgetful(**lines)
    x, target = torch.randn(6, 8), torch.randn(6)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
    debugger.start(model)
    model(x, target).backward()
    debugger.stop()
    debugger.step()
    if is_anothers:
        (dump,) = folder.rglob("dump.json")
        lines_of_it = dump.read_text().splitlines(keepends=True)
        dump.write_text("".join(line for line in lines_of_it if '"tensorprobe": {' not in line))
    return folder


def test_a_forgotten_squeeze_shows_between_tools(tmp_path: Path) -> None:
    theirs = step_of(tmp_path / "theirs", is_anothers=True)
    ours = step_of(tmp_path / "ours", is_anothers=False, squeezes=False)
    assert blame(ours, theirs).culprit == "Tensor.squeeze.0.forward"
    sound = step_of(tmp_path / "sound", is_anothers=False)
    assert blame(sound, theirs).culprit is None


def test_a_detach_too_many_accuses_no_kernel(tmp_path: Path) -> None:
    theirs = step_of(tmp_path / "theirs", is_anothers=True)
    ours = step_of(tmp_path / "ours", is_anothers=False, detaches=True)
    culprit = blame(ours, theirs).culprit
    assert culprit is None or ".detach." in culprit
