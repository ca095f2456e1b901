"""Which ranks are captured is decided when the rank is known, if that is only when a step ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from debugged import names, steps

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.config import load_config

WITH_GLOO = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs gloo",
)
PROGRAM = """
import sys, torch, torch.distributed as dist
from tensorprobe import PrecisionDebugger, load_config

rank, folder, wanted, level = int(sys.argv[1]), *sys.argv[2:]
config = load_config(dump_path=folder + "/dump", task="tensor", level=level, rank=[int(wanted)])
with PrecisionDebugger.from_config(config) as debugger:
    store = dist.FileStore(folder + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for number in range(2):
        torch.relu(torch.ones(2))
        debugger.save(torch.ones(2), "saved")
        if number == 0:
            debugger.step()
    dist.barrier()
    dist.destroy_process_group()
"""


@WITH_GLOO
@pytest.mark.parametrize("level", ["L1", "debug"])
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_process_that_gets_its_rank_during_a_step(
    tmp_path: Path, wanted: int, level: str
) -> None:
    words = [str(tmp_path), str(wanted), level]
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), *words]) for rank in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    for step in range(2):
        # The group is gone when the second step ends.
        left = [folder.name for folder in (tmp_path / "dump" / f"step{step}").iterdir()]
        assert left == [f"rank{wanted}"]
    assert {part.info.rank for part in open_dump(tmp_path / "dump").parts} == {wanted}


def run_plain(folder: Path, rank: int) -> None:
    config = load_config(dump_path=folder, task="tensor", rank=[rank])
    with PrecisionDebugger.from_config(config) as debugger:
        torch.relu(torch.ones(2))
        debugger.step()
        torch.relu(torch.ones(2))


def test_a_process_without_a_group_is_the_first(tmp_path: Path) -> None:
    run_plain(tmp_path, 0)
    assert steps(tmp_path) == ["step0", "step1"]
    # Nor does one that is not wanted take the place of what is there.
    before = names(tmp_path)
    run_plain(tmp_path, 1)
    assert names(tmp_path) == before and steps(tmp_path) == ["step0", "step1"]
    assert [child.name for child in (tmp_path / "step1").iterdir()] == ["rank"]


def test_who_gets_no_rank_in_a_step_is_not_watched_for_nothing_in_the_next(tmp_path: Path) -> None:
    config = load_config(dump_path=tmp_path, rank=[1])
    modes = []
    with PrecisionDebugger.from_config(config) as debugger:
        for _ in range(3):
            modes.append(torch._C._len_torch_function_stack())
            debugger.step()
    assert modes == [1, 0, 0]


def test_a_step_that_nobody_wants_leaves_nothing(tmp_path: Path) -> None:
    run_plain(tmp_path, 1)
    assert steps(tmp_path) == []
