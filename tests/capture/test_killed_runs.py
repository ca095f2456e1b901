"""However a run ends, every call that had finished on the host is in its dump."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import torch
from killed_runs import finish_run, kill_run

from overflow_runs import LateStatistics
from tensorprobe import PrecisionDebugger
from tensorprobe.records import TensorValue
from tensorprobe.store import open_dump
from warm_python import run_warm


@pytest.mark.parametrize(
    ("task", "level", "ranks"),
    [("statistics", "mix", 1), ("tensor", "mix", 1), ("tensor", "L2", 1), ("tensor", "L1", 2)],
)
def test_a_run_killed_at_any_moment_loses_no_finished_call(
    tmp_path: Path, task: str, level: str, ranks: int
) -> None:
    wholes = finish_run(tmp_path / "whole", task, level, ranks=ranks)
    killed = kill_run(tmp_path / "killed", task, level, random.Random(level), ranks=ranks)
    for one, whole in zip(killed, wholes, strict=True):
        # It may end between the end of a call and the writing of its record.
        assert one.lost(whole) <= 1


ENDING = """
import ctypes, os, signal, sys
import torch
from torch import nn
from tensorprobe import PrecisionDebugger

class Last(nn.Module):
    def forward(self, x):
        y = torch.sin(torch.relu(x))
        exec(sys.argv[4])
        return y

linear = nn.Linear(300, 200)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level=sys.argv[3])
debugger.start()
linear(torch.ones(100, 300)).sum().backward()
Last()(torch.ones(300, 400))
"""
_CALLS = [
    "Torch.ones.0.forward",
    "Functional.linear.0.forward",
    "Module.Linear.forward.0",
    "Tensor.sum.0.forward",
    "Tensor.sum.0.backward",
    "Functional.linear.0.backward",
    "Module.Linear.backward.0",
    "Torch.ones.1.forward",
    "Torch.relu.0.forward",
    "Torch.sin.0.forward",
]


def _run_to_its_end(folder: Path, task: str, end: str) -> int:
    return run_warm(ENDING, folder, task, "mix", end).returncode


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("ctypes.string_at(8)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(3)", 3),
    ],
)
def test_an_end_that_python_does_not_notice_costs_no_record(
    tmp_path: Path, task: str, end: str, code: int
) -> None:
    assert _run_to_its_end(tmp_path, task, end) == code
    (part,) = open_dump(tmp_path).parts
    assert not part.info.complete
    assert sorted(name for name in part.names if "grad" not in name) == sorted(_CALLS)
    # The one that it ended in is named, with the place.
    begun = [gap.problem for gap in part.gaps if "had begun" in gap.problem]
    assert begun == ["Module.Last.forward.0 (<string>:17) had begun and not ended"]
    for call in part:
        for leaf in call.leaves():
            if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                assert part.load(leaf.value).shape == leaf.value.shape


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(4)", 4),
        ("raise ValueError('a bug')", 1),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_an_end_that_python_sees_leaves_a_whole_dump(tmp_path: Path, end: str, code: int) -> None:
    assert _run_to_its_end(tmp_path, "tensor", end) == code
    (part,) = open_dump(tmp_path).parts
    assert part.info.complete and part.gaps == ()
    assert set(_CALLS) <= set(part.names)


def test_the_operator_that_a_run_is_killed_in_is_named(tmp_path: Path) -> None:
    # An API call whose operator ends the process, as a kernel does that writes where it must not.
    end = (
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Ends(TorchDispatchMode):\n"
        "    def __torch_dispatch__(self, *given):\n"
        "        os.abort()\n"
        "with Ends():\n"
        "    torch.cos(x)"
    )
    assert _run_to_its_end(tmp_path, "statistics", end) == -signal.SIGABRT
    (part,) = open_dump(tmp_path).parts
    begun = [gap.problem for gap in part.gaps if "had begun" in gap.problem]
    assert [problem.partition(" ")[0] for problem in begun] == [
        "Module.Last.forward.0",
        "Torch.cos.0.forward",
    ]
    assert 17 in [frame.line for frame in part.stack("Torch.cos.0.forward")]


def test_calls_whose_values_are_still_on_a_device_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorprobe.capture.recorder.StatisticsQueue", LateStatistics)
    given = torch.ones(2)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(given)
    torch.tanh(given)
    # What is on the disk now is what a kill would leave.
    (part,) = open_dump(tmp_path).parts
    assert list(part.names) == []
    (gap,) = [gap.problem for gap in part.gaps if "had not arrived" in gap.problem]
    assert gap.startswith("values of 2 calls had not arrived from their device: ")
    for name in ("Torch.relu.0.forward", "Torch.tanh.0.forward"):
        assert f"{name} ({__file__}:{part.stack(name)[0].line})" in gap
    debugger.step()
    assert open_dump(tmp_path).gaps == ()
