"""Ranks, processes that fork, and the end of a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from debugged import names
from torch.utils.data import DataLoader

from overflow_runs import LateStatistics
from tensorprobe import (
    PrecisionDebugger,
    open_dump,
    save,
)
from tensorprobe.records import TensorValue
from warm_python import run_warm


class SentStatistics(LateStatistics):
    """Numbers that are there as soon as they were sent off, which takes no time."""

    def send(self) -> None:
        self.fetch()


def test_a_long_step_is_written_though_few_numbers_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = "tensorprobe.capture.recorder"
    monkeypatch.setattr(f"{recorder}.StatisticsQueue", SentStatistics)
    monkeypatch.setattr(f"{recorder}._LONGEST_WAIT_ON_DEVICE", 0.0)
    given = torch.ones(2)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(given)
    torch.tanh(given)
    (part,) = open_dump(tmp_path).parts
    assert [call.name for call in part] == ["Torch.relu.0.forward", "Torch.tanh.0.forward"]
    debugger.stop()


def test_the_rank_of_a_launcher_counts_before_its_group_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.step()
    assert (tmp_path / "step0/rank3/dump.json").exists()


def test_a_dump_moves_to_the_rank_that_its_process_gets_later(tmp_path: Path) -> None:
    program = (
        "import torch, torch.distributed as dist, sys\n"
        "from tensorprobe import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path=sys.argv[1], task='tensor')\n"
        "debugger.start()\n"
        "torch.relu(torch.ones(2))\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "debugger.step()\n"
        "dist.destroy_process_group()\n"
    )
    run_program(program, tmp_path)
    assert sorted(child.name for child in (tmp_path / "step0").iterdir()) == ["rank0"]
    (part,) = open_dump(tmp_path).parts
    assert part.info.rank == 0
    (call,) = [call for call in part if call.name == "Torch.relu.0.forward"]
    value = next(iter(call.leaves())).value
    assert isinstance(value, TensorValue)
    assert part.load(value).array.tolist() == [1.0, 1.0]


def test_the_end_of_the_process_finishes_the_dump(tmp_path: Path) -> None:
    program = (
        "import torch, sys\n"
        "from tensorprobe import PrecisionDebugger\n"
        "PrecisionDebugger(dump_path=sys.argv[1])\n"
        "PrecisionDebugger.start()\n"
        "torch.relu(torch.ones(2))\n"
    )
    run_program(program, tmp_path)
    assert "Torch.relu.0.forward" in names(tmp_path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_leaves_the_dump_of_its_parent_alone(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.start()
    torch.relu(torch.ones(2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.sigmoid(torch.ones(2))
            PrecisionDebugger.stop()
            code = 0 if debugger._session is None else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    debugger.step()
    called = names(tmp_path)
    assert "Torch.relu.0.forward" in called and not any("sigmoid" in n for n in called)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_of_a_dataloader_saves_nothing(tmp_path: Path) -> None:
    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        save(items[0], "item")
        return torch.stack(items)

    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    for batch in DataLoader(torch.ones(4, 2), batch_size=2, num_workers=1, collate_fn=collate):
        save(batch, "batch", save_backward=False)
        debugger.step()
    assert [file.parent.name for file in tmp_path.rglob("*.json")] == ["rank", "rank"]
    assert [names(tmp_path, step, "debug.json") for step in (0, 1)] == [["batch.0.debug"]] * 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_captured_once_it_starts_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setenv("RANK", "1")
            monkeypatch.setenv("WORLD_SIZE", "2")
            save(torch.ones(2), "before", save_backward=False)
            debugger.start()
            save(torch.ones(2), "after", save_backward=False)
            debugger.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (part,) = open_dump(tmp_path).parts
    assert part.info.rank == 1 and list(part.names) == ["after.0.debug"]


def run_program(program: str, folder: Path) -> None:
    run_warm(program, folder, check=True)
